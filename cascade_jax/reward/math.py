r"""Math answers: the last \boxed{} against the expected answer.

Exact comparison of text, integers and fractions comes first and decides nearly all; the rest goes to `math-verify` in
processes that are killed when an answer makes them hang or eat memory. Row field: `expected_answer`.
"""

import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

from cascade_jax.reward.boxed import last_boxed
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.reward.worker_pool import WorkerFailed, WorkerPool
from cascade_jax.types import Row, Sample

_MAX_CHARS = 1_000  # of a boxed answer
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_SPACES = re.compile(r"\s+|\\[,;:! ]|~")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d{1,200})\}\{(-?\d{1,200})\}|(-?)\\[dt]?frac(\d)(\d)")
_NUMBER = re.compile(r"[+-]?(\d{1,200})(\.\d{1,200})?(/\d{1,200})?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_BARE_ROOT = re.compile(r"\\sqrt\(([^()]*)\)")
_ELLIPSIS = re.compile(r"\\[lcd]?dots|\.\.\.|…")


class MathAnswer:
    """1 for an answer equal to the expected one, 0 for another or none in a box.

    No verdict where the check itself could not finish, since the truth is not known then. `info["cause"]` says whether
    the answer made it hang ("answer"), the expected answer did ("gold"), or the worker never came up ("start").
    Workers start with the first answer that needs one.
    """

    def __init__(self, *, workers: int | None = None, seconds: float = 8.0, megabytes: int = 2048):
        script = Path(__file__).with_name("math_worker.py")
        # A worker that outlives its trainer ends itself a little after the trainer would have killed it.
        arguments = (str(megabytes), str(seconds + 2))
        self.pool = WorkerPool(script, arguments, size=workers or min(8, os.cpu_count() or 1), seconds=seconds)

    def verify(self, row: Row, sample: Sample) -> Verdict:
        gold = _bare(str(row.fields.get("expected_answer") or ""))
        if not gold:
            return unjudged("the row has no expected_answer")
        early = unanswered(sample)
        if early is not None:
            return early
        boxed = last_boxed(reply_of(sample).content)
        if not boxed:
            return wrong(r"no \boxed{} answer")
        if len(boxed) > _MAX_CHARS:
            return wrong(f"the boxed answer is longer than {_MAX_CHARS} characters")
        answer = _bare(boxed)
        same = exactly_equal(gold, answer)
        if same is not None:
            return Verdict(float(same), {"exact": 1.0}, {"extracted": answer})
        if _ELLIPSIS.search(answer) and not _ELLIPSIS.search(gold):
            return wrong("an answer with an ellipsis is not finished", extracted=answer)
        return self._compare(gold, answer)

    def close(self) -> None:
        """End the workers; a later check starts new ones."""
        self.pool.close()

    def _compare(self, gold: str, answer: str) -> Verdict:
        gold, answer = (_BARE_ROOT.sub(r"\\sqrt{\1}", text) for text in (gold, answer))
        try:
            result: dict[str, Any] = self.pool.ask({"gold": gold, "answer": answer})
        except WorkerFailed as error:
            cause = ("gold" if self._hangs(gold) else "answer") if error.started else "start"
            return unjudged(f"math-verify: {error}", cause=cause, extracted=answer)
        if "equal" in result:
            return Verdict(float(result["equal"]), {"exact": 0.0}, {"extracted": answer})
        if result["cause"] == "gold" or result["error"] == "out of memory":
            return unjudged(f"math-verify: {result['error']}", cause=result["cause"], extracted=answer)
        return wrong(f"math-verify: {result['error']}", extracted=answer)

    def _hangs(self, gold: str) -> bool:
        """Whether the expected answer cannot even be compared with a harmless one."""
        if as_fraction(_squeezed(gold)) is not None:
            return False
        try:
            self.pool.ask({"gold": gold, "answer": "0"})
        except WorkerFailed:
            return True
        return False


def exactly_equal(gold: str, answer: str) -> bool | None:
    """True or False where text or exact numbers decide, None where algebra has to."""
    a, b = _squeezed(gold), _squeezed(answer)
    if a == b:
        return True
    x, y = as_fraction(a), as_fraction(b)
    if x is None or y is None:
        return None
    # A decimal may be a rounded value, and how far is the comparison's business further on.
    return True if x == y else None if "." in a + b else False


def as_fraction(text: str) -> Fraction | None:
    r"""An integer, decimal, a/b or \frac{a}{b} as an exact number, else None."""
    found = _FRACTION.fullmatch(text)
    if found:
        sign, top, bottom = (found[1], found[2], found[3]) if found[2] else (found[4], found[5], found[6])
        return Fraction(int(sign + "1") * int(top), int(bottom)) if int(bottom) else None
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    found = _NUMBER.fullmatch(text)
    if not found or (found[2] and found[3]) or (found[3] and not int(found[3][1:])):
        return None
    return Fraction(text)


def _bare(text: str) -> str:
    """Without delimiters, without a box of its own, without a full stop at the end."""
    text = text.strip()
    for opening, closing in _DELIMITERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            return _bare(text[len(opening) : -len(closing)])
    inside = last_boxed(text) if text.startswith(r"\boxed{") else None
    return _bare(inside) if inside else text.removesuffix(".").strip()


def _squeezed(text: str) -> str:
    return _SPACES.sub("", text).replace("\N{MINUS SIGN}", "-").replace(r"\left", "").replace(r"\right", "")
