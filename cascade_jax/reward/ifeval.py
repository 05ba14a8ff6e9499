"""The checks of IFEval (25 ids) and IFBench (58 ids), packaged by `if-verifiable`: offline, the same on every call, and
in time that grows with the length of an answer and not with its square.
"""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

from cascade_jax.reward import english
from cascade_jax.reward.instruction_arguments import BadInstruction, require

_LOADING = threading.Lock()
# Arguments that the package puts into a regular expression as they are; texts are meant.
_LITERAL = {
    "keywords:existence": "keywords",
    "keywords:frequency": "keyword",
    "keywords:forbidden_words": "forbidden_words",
    "detectable_format:multiple_sections": "section_spliter",
}
_NUMBER = re.compile(r"N|n|m|small_n|n_start|n_end|\w+_words|percentage|nth_paragraph|num_\w+|\w*frequency")


def bind(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """The check of one instruction, which takes the text. BadInstruction: arguments that do not fit."""
    checker = load_registry()[name](name)
    require(name, arguments, _parameters(type(checker)))
    given = {key: _escaped(value) if key == _LITERAL.get(name) else value for key, value in arguments.items()}
    from_zero = name == "repeat:repeat_span" and given["n_start"] == 0  # which the package takes for "not given"
    try:
        checker.build_description(**given | ({"n_start": 1} if from_zero else {}))
    except Exception as error:  # whatever the third-party code says about these arguments, the row is at fault
        raise BadInstruction(f"instruction {name} cannot be checked with {dict(arguments)}: {error}") from None
    if from_zero:
        checker._n_start = 0
    replaced = _INSTEAD.get(name)
    return functools.partial(replaced, checker) if replaced else checker.check_following


def sentences(text: str) -> list[str]:
    """Sentences by IFEval's rules, which split after every full stop that no abbreviation or number explains."""
    load_registry()
    return sys.modules["if_verifiable.ifeval.instructions_util"].split_into_sentences(text)


def _escaped(value: str | list[str]) -> str | list[str]:
    return re.escape(value.strip()) if isinstance(value, str) else [re.escape(one.strip()) for one in value]


@functools.lru_cache(maxsize=256)
def _parameters(checker: type) -> dict[str, inspect.Parameter]:
    """All are required, whatever their default: the registries draw a random value for one that is not given."""
    _, *found = inspect.signature(checker.build_description).parameters.items()
    return {key: p.replace(default=inspect.Parameter.empty, annotation=_type(key)) for key, p in found}


def _type(key: str) -> type:
    """What the package means by an argument of this name; it declares no types, and some it looks at too late."""
    if key in ("keywords", "forbidden_words"):
        return list
    return int if _NUMBER.fullmatch(key) else str


def load_registry() -> Mapping[str, type]:
    """instruction id -> checker class. The first call imports `if-verifiable` and takes about 3 s."""
    with _LOADING:
        return _load_registry()


@functools.lru_cache(maxsize=1)
def _load_registry() -> Mapping[str, type]:
    import langdetect
    import nltk

    # Models and profiles are read while only one thread is here, and an incomplete installation shows at once.
    langdetect.DetectorFactory.seed = 0
    langdetect.detect("Some words of English.")
    english.starts_with_verb("Go there. Then come back.")
    # The package's root imports `datasets`, and one of its modules downloads NLTK data: neither is needed.
    if "if_verifiable" not in sys.modules:
        spec = importlib.util.find_spec("if_verifiable")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("instruction_following needs if-verifiable; install cascade_jax[reward].")
        root = types.ModuleType("if_verifiable")
        root.__path__ = list(spec.submodule_search_locations)
        sys.modules["if_verifiable"] = root
    download, nltk.download = nltk.download, lambda *_args, **_kwargs: False
    try:
        parts = [importlib.import_module(f"if_verifiable.{name}.instructions") for name in ("ifeval", "ifbench")]
        registries = [importlib.import_module(f"{part.__name__}_registry").INSTRUCTION_DICT for part in parts]
    finally:
        nltk.download = download
    for part in parts:
        _make_offline(part)
        _make_offline(part.instructions_util)
    parts[0].instructions_util.count_sentences = lambda text: len(english.sentences(text))
    parts[1].instructions_util.count_stopwords = _count_stop_words
    return {**registries[0], **registries[1]}


def _make_offline(module: types.ModuleType) -> None:
    """Within one module of the package: no NLTK data, and no random value for an argument that the row leaves open."""
    import langdetect
    import nltk

    names = vars(module)
    if "nltk" in names:
        names["nltk"] = types.SimpleNamespace(
            ngrams=nltk.ngrams, tokenize=nltk.tokenize, word_tokenize=lambda text: list(english.words(text))
        )
    if "langdetect" in names:
        exception = langdetect.LangDetectException
        names["langdetect"] = types.SimpleNamespace(detect=_language, LangDetectException=exception)
    names["random"] = types.SimpleNamespace(choice=_refuse, randint=_refuse, sample=_refuse)


def _language(text: str) -> str | None:
    """None where none can be told, as of an address alone; the package would take that for the language asked for."""
    import langdetect

    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None


def _refuse(*_args: Any, **_kwargs: Any) -> Any:
    raise BadInstruction("an argument is out of range")


def _count_stop_words(text: str) -> int:
    return sum(word.lower() in english.STOP_WORDS for word in re.findall(r"\w+", text))


# The package's own forms of these take time with the square of the answer's length on runs of blanks, brackets or
# line breaks. Tests compare the two forms.


def _placeholders(checker: Any, text: str) -> bool:
    r"""As many as asked for of \[.*?\]: brackets on one line, the nearest closing one for each that is open."""
    number = 0
    for line in text.split("\n"):
        position = 0
        while (begin := line.find("[", position)) >= 0 and (end := line.find("]", begin)) >= 0:
            number, position = number + 1, end + 1
    return number >= checker._num_placeholders


def _postscript(checker: Any, text: str) -> bool:
    marker = checker._postscript_marker
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(patterns.get(marker, re.escape(marker.lower())), text.lower()) is not None


def _bullet_lists(checker: Any, text: str) -> bool:
    patterns = (r"^[^\S\n]*\*[^\*].*$", r"^[^\S\n]*-.*$")
    return sum(len(re.findall(pattern, text, re.MULTILINE)) for pattern in patterns) == checker._num_bullets


def _title(checker: Any, text: str) -> bool:
    """<< and >> on one line, and something other than brackets of that kind in between."""
    for line in text.split("\n"):
        begin, end = line.find("<<"), line.rfind(">>")
        if 0 <= begin < end - 2 and line[begin:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def _newline(checker: Any, text: str) -> bool:
    words = re.sub(r"[!-/:-@\[-`{-~]", "", text).strip()
    return sum(line != "" for line in words.split("\n")) == len(words.split())


def _line_indent(checker: Any, text: str) -> bool:
    # At most every other line is taken out as blank, and stairs of n lines have n * (n - 1) / 2 blanks before them.
    lines = text.count("\n") + 1
    return (lines // 2) * (lines // 2 - 1) <= 2 * len(text) and checker.check_following(text)


def _questions(checker: Any, text: str) -> bool:
    return "\n" * 100 not in text and checker.check_following(text)


def _csv_special_character(checker: Any, text: str) -> bool:
    return max(map(len, text.split("\n"))) <= 5000 and checker.check_following(text)


def _start_verb(checker: Any, text: str) -> bool:
    return english.starts_with_verb(text)


_INSTEAD: dict[str, Callable[[Any, str], bool]] = {
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullet_lists,
    "detectable_format:title": _title,
    "format:newline": _newline,
    "format:line_indent": _line_indent,
    "custom:mcq_count_length": _questions,
    "custom:csv_special_character": _csv_special_character,
    "words:start_verb": _start_verb,  # which would need NLTK's tagger
}
