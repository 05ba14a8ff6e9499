"""Instruction following: 112 kinds of instruction, each checked by a rule.

25 are of IFEval and 58 of IFBench (`ifeval`), 29 more of the data for training (`training_instructions`).
Row fields (NeMo-Gym): `instruction_id_list`, `kwargs` (one object per id), `grading_mode` (binary, fraction).
"""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cascade_jax.reward import ifeval, training_instructions
from cascade_jax.reward.ifeval import load_registry
from cascade_jax.reward.instruction_arguments import BadInstruction, tidy
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample

__all__ = ["BadInstruction", "InstructionFollowing", "build_checker", "load_registry"]

_ALIASES = {"letters:letter_counting2": "keywords:letter_frequency"}
# Checks of letters, and those that marks alone can follow. All others take at least a letter, digit or picture.
_OF_LETTERS = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
_OF_MARKS = ("format:parentheses", "format:quotes", "count:punctuation")


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
        except BadInstruction as error:
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
        checkers = [build_checker(name, arguments or {}) for name, arguments in zip(ids, kwargs, strict=True)]
        texts = _loose(text) if self.loose else [text]
        return {f"{i}:{c.name}": any(map(c.followed_by, texts)) for i, c in enumerate(checkers)}


@dataclass(frozen=True)
class Checker:
    """One instruction with its arguments."""

    name: str
    check_following: Callable[[str], bool]  # the rule itself, which may raise

    def followed_by(self, text: str) -> bool:
        """A text that says nothing, or that the rule stumbles over, does not follow."""
        if not _says_something(self.name, text):
            return False
        try:
            return bool(self.check_following(text))
        except Exception:  # third-party checks stumble over odd answers in many ways
            return False


def build_checker(name: str, arguments: Mapping[str, Any]) -> Checker:
    """A checker that is ready to be asked. BadInstruction: unknown id; missing, unknown or impossible arguments."""
    known = _ALIASES.get(name, name)
    if not isinstance(arguments, Mapping):
        raise BadInstruction(f"the kwargs of instruction {name} must be an object, not {arguments!r}")
    for part, names in ((ifeval, load_registry()), (training_instructions, training_instructions.CHECKS)):
        if known in names:
            return Checker(name, part.bind(known, tidy(arguments)))
    raise BadInstruction(f"instruction {name} is unknown")


def _says_something(name: str, text: str) -> bool:
    if name in _OF_LETTERS:
        return any(map(str.isalpha, text))
    if name in _OF_MARKS:
        return bool(text.strip())
    return any(letter.isalnum() or unicodedata.category(letter) == "So" for letter in text)


def _loose(text: str) -> list[str]:
    """The text, and what is left of it without its first, last or both lines, each also without asterisks."""
    lines = text.split("\n")
    parts = ("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))
    variants = [text, *parts]
    return list(dict.fromkeys(variants + [variant.replace("*", "") for variant in variants]))
