"""Columns of the kinds that another model judges: preferences, agreement with an answer, proofs, and demonstrations."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.data.kinds.columns import text

COLUMNS = {
    "preference": ("principle", "reference"),
    "judged": ("question", "expected_answer"),
    "proof": ("question", "rubric", "reference"),
    "sft": (),
}


def _check_preference(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    return {**text(fields, "principle"), **text(fields, "reference")}


def _check_judged(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    answer = fields.get("expected_answer")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
        raise ValueError(f"expected_answer is {answer!r}; it must be a text or a number")
    return {**text(fields, "question"), "expected_answer": str(answer)}


def _check_proof(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    found = {**text(fields, "question"), **text(fields, "rubric"), **text(fields, "reference")}
    if not any(found.get(name, "").strip() for name in ("rubric", "reference")):
        raise ValueError("a proof needs a rubric or a reference to be judged against")
    return found


CHECKS = {"preference": _check_preference, "judged": _check_judged, "proof": _check_proof}
