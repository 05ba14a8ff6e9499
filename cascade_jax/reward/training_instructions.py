"""The instructions of the IF-RLVR training data that IFEval and IFBench do not have (Pyatkin et al. 2025).

There are 29; letters:letter_counting2 is IFEval's keywords:letter_frequency by another name, the others are here.
24 of them are in the Cascade-2 data; copy:copy, copy:copying_simple, copy:copying_multiple, new:copy_span_idx and
keywords:exclude_word_harder only in that of Nano. What passes is what the server that the data was made for lets pass,
odd corners included, so that rewards agree; each function's docstring tells it. Words are counted as substrings in any
case where nothing else is said. No function sees an empty text.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade_jax.reward import english, ifeval
from cascade_jax.reward.instruction_arguments import Count, Ordinal, Relation, require


def bind(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """The check of one instruction, which takes the text. BadInstruction: arguments that do not fit."""
    check = CHECKS[name]
    _, *parameters = inspect.signature(check).parameters.items()
    require(name, arguments, dict(parameters))
    return lambda text: check(text, **arguments)


def _repeat_phrase(text: str, *, phrase: str, small_n: Ordinal) -> bool:
    """Exactly small_n spans on one line from the phrase's first word to its last, as many words, one changed at most.

    The last span must have one changed.
    """
    words = phrase.split()
    spans = [span.split() for line in text.split("\n") for span in _spans(line, f"{words[0]} ", f" {words[-1]}")]
    if len(spans) != small_n or any(len(span) != len(words) for span in spans):
        return False
    changed = [sum(ours != theirs for ours, theirs in zip(span, words, strict=True)) for span in spans]
    return max(changed) <= 1 and changed[-1] == 1


def _spans(line: str, start: str, end: str) -> list[str]:
    """The shortest spans from `start` to `end`, from the left, none within another."""
    spans, position = [], 0
    while (begin := line.find(start, position)) >= 0 and (stop := line.find(end, begin + len(start))) >= 0:
        position = stop + len(end)
        spans.append(line[begin:position])
    return spans


def _copy(text: str, *, prompt_to_repeat: str) -> bool:
    """The request, in any case, and nothing else."""
    return _same(text, prompt_to_repeat)


def _copy_multiple(text: str, *, prompt_to_repeat: str, N: Ordinal) -> bool:
    """The request N times, with six asterisks in between."""
    copies = text.split("******")
    return len(copies) == N and all(_same(copy, prompt_to_repeat) for copy in copies)


def _copy_span(text: str, *, prompt_to_repeat: str, n_start: Count, n_end: Count) -> bool:
    """The characters from n_start to n_end. The prompt says "including n_end", the server leaves it out: both pass."""
    return any(_same(text, prompt_to_repeat[n_start:stop]) for stop in (n_end, n_end + 1))


def _same(text: str, other: str) -> bool:
    return text.strip().lower() == other.strip().lower()


def _sentence_hyphens(text: str) -> bool:
    """What stands between the hyphens is exactly the sentences, without a space at either side of a hyphen."""
    text = text.strip()
    return text.split("-") == ifeval.sentences(text.replace("-", " "))


def _square_brackets(text: str) -> bool:
    """Every word, by white space, stands in brackets of its own."""
    return all(len(word) > 2 and word.startswith("[") and word.endswith("]") for word in text.split())


def _bigram_wrapping(text: str) -> bool:
    """Words 1 and 2, 3 and 4 and so on open with << and close with >>; an odd last word is free."""
    words = text.split()
    return all(a.startswith("<<") and b.endswith(">>") for a, b in zip(words[::2], words[1::2], strict=False))


def _no_adjacent_consecutive(text: str) -> bool:
    """No word starts with the letter that follows the one before it in the alphabet."""
    initials = [word[0].lower() for word in text.split()]
    pairs = itertools.pairwise(initials)
    return not any(a.isalpha() and b.isalpha() and ord(b[0]) - ord(a[0]) == 1 for a, b in pairs)


def _word_once(text: str, *, keyword: str) -> bool:
    return _count(text, keyword) == 1


def _word_count(text: str, *, keyword: str, frequency: Count, relation: Relation) -> bool:
    return _compare(_count(text, keyword), relation, frequency)


def _count_increment_word(text: str, *, keyword1: str, keyword2: str) -> bool:
    return _count(text, keyword1) == 1 and _count(text, keyword2) == 2


def _count(text: str, keyword: str) -> int:
    return text.lower().count(keyword.strip().lower())


def _compare(number: int, relation: Relation, bound: int) -> bool:
    return number < bound if relation == "less than" else number >= bound


def _exclude_word_harder(text: str, *, keyword: str, instruction: str = "") -> bool:
    """The keyword is no word of the text, in any case. `instruction` is where the data drew the keyword from."""
    return re.search(rf"(?<!\w){re.escape(keyword.strip())}(?!\w)", text, re.IGNORECASE) is None


def _palindrome(text: str) -> bool:
    """Some word, by white space, reads the same backwards; one letter is enough, punctuation and case count."""
    return any(word == word[::-1] for word in text.split())


def _keyword_specific_position(text: str, *, keyword: str, n: Ordinal, m: Ordinal) -> bool:
    """Token m of sentence n is the keyword, case and all; punctuation marks are tokens."""
    sentences = ifeval.sentences(text)
    words = english.words(sentences[n - 1]) if n <= len(sentences) else ()
    return m <= len(words) and words[m - 1] == keyword.strip()


def _start_end(text: str) -> bool:
    """First and last token are the same in any case, so nothing follows the last word, not even a full stop."""
    words = english.words(text)
    return len(words) > 1 and words[0].lower() == words[-1].lower()


def _paragraphs(text: str) -> bool:
    return _are_two(re.split(r"\s?\*\*\*\s?", text))


def _paragraphs2(text: str) -> bool:
    return _are_two(text.split("\n\n"))


def _are_two(paragraphs: Sequence[str]) -> bool:
    """Whether two are left without a blank first and a blank last one; one that is blank in between is a fault."""
    filled = [bool(paragraph.strip()) for paragraph in paragraphs]
    return all(filled[1:-1]) and sum(filled) == 2


def _first_word_sent(text: str, *, first_word: str) -> bool:
    return all(_starts(sentence, first_word) for sentence in ifeval.sentences(text))


def _first_word_answer(text: str, *, first_word: str) -> bool:
    return _starts(text, first_word)


def _starts(text: str, word: str) -> bool:
    """The first word, by white space and with whatever punctuation sticks to it, is `word` in any case."""
    return _same("".join(text.split()[:1]), word)


def _last_word_sent(text: str, *, last_word: str) -> bool:
    return all(_ends(sentence, last_word) for sentence in ifeval.sentences(text))


def _last_word_answer(text: str, *, last_word: str) -> bool:
    return _ends(text, last_word)


def _ends(text: str, word: str) -> bool:
    """The last word, without punctuation, is `word` in any case."""
    last = "".join(text.split()[-1:])
    return _same(*(re.sub(r"[^\w\s]", "", written) for written in (last, word)))


def _no_dot(text: str) -> bool:
    return "." not in text


def _no_exclamation(text: str) -> bool:
    return "!" not in text


def _lowercase_counting(text: str, *, N: Count) -> bool:
    """N words at most, counted with repeats, are written in small ASCII letters alone; "don't" is two of them."""
    return len(re.findall(r"\b[a-z]+\b", text)) <= N


def _letter_counting(text: str, *, N: Count, relation: Relation) -> bool:
    """ASCII letters in all."""
    return _compare(sum(letter.isascii() and letter.isalpha() for letter in text), relation, N)


def _counting_composition(text: str, *, n_sent: Ordinal, n_words: Ordinal) -> bool:
    """Three paragraphs between ***, each of n_sent sentences of n_words tokens; punctuation marks are tokens."""
    paragraphs = [ifeval.sentences(part) for part in re.split(r"\s?\*\*\*\s?", text)]
    return len(paragraphs) == 3 and all(
        len(sentences) == n_sent and all(len(english.words(sentence)) == n_words for sentence in sentences)
        for sentences in paragraphs
    )


def _count_unique(text: str) -> bool:
    """No token occurs twice; case counts, and so do punctuation marks."""
    words = english.words(text)
    return len(words) == len(set(words))


CHECKS: dict[str, Callable[..., bool]] = {
    "copy:repeat_phrase": _repeat_phrase,
    "copy:copy": _copy,
    "copy:copying_simple": _copy,
    "copy:copying_multiple": _copy_multiple,
    "new:copy_span_idx": _copy_span,
    "detectable_format:sentence_hyphens": _sentence_hyphens,
    "detectable_format:square_brackets": _square_brackets,
    "detectable_format:bigram_wrapping": _bigram_wrapping,
    "keywords:no_adjacent_consecutive": _no_adjacent_consecutive,
    "keywords:word_once": _word_once,
    "keywords:word_count_different_numbers": _word_count,
    "keywords:exclude_word_harder": _exclude_word_harder,
    "keywords:palindrome": _palindrome,
    "keywords:keyword_specific_position": _keyword_specific_position,
    "keywords:start_end": _start_end,
    "paragraphs:paragraphs": _paragraphs,
    "paragraphs:paragraphs2": _paragraphs2,
    "first_word:first_word_sent": _first_word_sent,
    "first_word:first_word_answer": _first_word_answer,
    "last_word:last_word_sent": _last_word_sent,
    "last_word:last_word_answer": _last_word_answer,
    "punctuation:punctuation_dot": _no_dot,
    "punctuation:punctuation_exclamation": _no_exclamation,
    "count:lowercase_counting": _lowercase_counting,
    "letters:letter_counting": _letter_counting,
    "count:counting_composition": _counting_composition,
    "count:count_unique": _count_unique,
    "count:count_increment_word": _count_increment_word,
}
