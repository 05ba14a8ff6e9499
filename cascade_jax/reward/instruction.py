"""Instruction following: the checks of IFEval (25 ids) and IFBench (58 ids), packaged by `if-verifiable`, offline.

Row fields (NeMo-Gym): `instruction_id_list`, `kwargs` (one object per id), `grading_mode` (binary, fraction).
"""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cascade_jax.reward import english
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample

_LOADING = threading.Lock()
# Language and case checks of the registries pass on a text that has no letter at all.
_NEED_LETTERS = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")


class BadInstruction(ValueError):
    """A row whose instruction cannot be checked: unknown id, missing or impossible arguments."""


@dataclass(frozen=True)
class InstructionFollowing:
    """binary: 1 only if every instruction is followed; fraction: the share that is.

    `loose` also accepts the answer without its first line, its last line or its asterisks (Zhou et al. 2023, IFEval);
    benchmarks report it, training does not use it.
    """

    grading_mode: Literal["binary", "fraction"] | None = None  # None: what the row says
    loose: bool = False

    def verify(self, row: Row, sample: Sample) -> Verdict:
        early = unanswered(sample)
        if early is not None:
            return early
        text = reply_of(sample).content
        try:
            followed = self._follow(text, row.fields)
        except (BadInstruction, english.MissingResource) as error:
            return unjudged(str(error))
        fraction = sum(followed.values()) / len(followed)
        mode = self.grading_mode or row.fields.get("grading_mode") or "binary"
        reward = float(fraction == 1.0) if mode == "binary" else fraction
        failed = [name for name, ok in followed.items() if not ok]
        return Verdict(reward, {"fraction": fraction}, {"failed": failed})

    def _follow(self, text: str, fields: Mapping[str, Any]) -> dict[str, bool]:
        ids = fields.get("instruction_id_list") or []
        kwargs = fields.get("kwargs") or [{}] * len(ids)
        if not ids or len(ids) != len(kwargs):
            raise BadInstruction(f"the row has {len(ids)} instructions and {len(kwargs)} kwargs; one each is needed")
        texts = _loose(text) if self.loose else [text]
        followed = {}
        for i, (name, arguments) in enumerate(zip(ids, kwargs, strict=True)):
            checker = build_checker(name, arguments or {})
            followed[f"{i}:{name}"] = any(_holds(name, checker, variant) for variant in texts)
        return followed


def _holds(name: str, checker: Any, text: str) -> bool:
    if not text.strip() or (name in _NEED_LETTERS and not any(c.isalpha() for c in text)):
        return False
    try:
        return bool(checker.check_following(text))
    except english.MissingResource:
        raise
    except Exception:  # third-party checks stumble over odd answers in many ways; such an answer does not follow
        return False


def _loose(text: str) -> list[str]:
    lines = text.split("\n")
    parts = [lines, lines[1:], lines[:-1], lines[1:-1]]
    variants = [text, *("\n".join(part).strip() for part in parts[1:])]
    return variants + [variant.replace("*", "") for variant in variants]


def build_checker(name: str, arguments: Mapping[str, Any]) -> Any:
    """A checker that is ready to be asked. BadInstruction: unknown id; missing, unknown or impossible arguments."""
    registry = load_registry()
    if name not in registry:
        raise BadInstruction(f"instruction {name} is unknown")
    given = {key: _tidy(key, value) for key, value in arguments.items() if value is not None}
    wanted, open_ended = _parameters(registry[name])
    missing = [key for key in wanted if key not in given]
    extra = [key for key in given if key not in wanted]
    if missing or (extra and not open_ended):
        raise BadInstruction(
            f"instruction {name} takes {list(wanted) or 'no arguments'}, the row gives {sorted(given)}"
        )
    checker = registry[name](name)
    from_zero = name == "repeat:repeat_span" and given["n_start"] == 0  # which the package takes for "not given"
    try:
        checker.build_description(**given | ({"n_start": 1} if from_zero else {}))
    except Exception as error:  # whatever the third-party code says about these arguments, the row is at fault
        raise BadInstruction(f"instruction {name} cannot be checked with {given}: {error}") from None
    if from_zero:
        checker._n_start = 0
    return checker


def _tidy(key: str, value: Any) -> Any:
    """Published rows hold whole numbers as floats, and single keywords in lists of one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if re.fullmatch(r"keyword\d*", key) and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


@functools.lru_cache(maxsize=256)
def _parameters(checker: type) -> tuple[tuple[str, ...], bool]:
    """Names that have to be given, all of them: the registries draw a random value for one that is not."""
    found = list(inspect.signature(checker.build_description).parameters.values())[1:]
    named = tuple(p.name for p in found if p.kind is not inspect.Parameter.VAR_KEYWORD)
    return named, len(named) < len(found)


def load_registry() -> Mapping[str, type]:
    """instruction id -> checker class. The first call imports `if-verifiable` and takes about 3 s."""
    with _LOADING:
        return _load_registry()


@functools.lru_cache(maxsize=1)
def _load_registry() -> Mapping[str, type]:
    import langdetect
    import nltk

    langdetect.DetectorFactory.seed = 0
    langdetect.detect("Loads the language profiles while only one thread is here.")
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
    import nltk

    names = vars(module)
    if "nltk" in names:
        names["nltk"] = types.SimpleNamespace(
            ngrams=nltk.ngrams,
            tokenize=nltk.tokenize,
            word_tokenize=lambda text: list(english.words(text)),
            pos_tag=english.tags,
        )
    names["random"] = types.SimpleNamespace(choice=_refuse, randint=_refuse, sample=_refuse)


def _refuse(*_args: Any, **_kwargs: Any) -> Any:
    raise BadInstruction("an argument is out of range")


def _count_stop_words(text: str) -> int:
    return sum(word.lower() in english.STOP_WORDS for word in re.findall(r"\w+", text))
