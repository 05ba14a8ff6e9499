"""What a benchmark is: rows, a verifier, and the settings of its published score, which are the defaults here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cascade_jax.config import SamplingConfig
from cascade_jax.data.rows import parse_row
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.reward import VERIFIERS, Verdict, Verifier
from cascade_jax.reward.judge import Judge
from cascade_jax.reward.preference import win_rate
from cascade_jax.rollout.environment import Environment
from cascade_jax.types import Row, Sample
from evals.benchmarks.data import Data

K = 1024
# Where the paper says nothing (recipe 15): temperature 1, top-p 0.95, 128K tokens
UNSAID = SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=128 * K)


@dataclass(frozen=True)
class Benchmark:
    """`samples`, `sampling` and `thinking` are the paper's (Nemotron-Cascade 2, appendix A); `note` says where not.

    `votes`: how the answers of a row's samples are told apart for majority@k, "" where there are none to vote over.
    `by`: the field of a row that scores are also given by. `paper_judge`: the model that judges in the paper.
    """

    title: str
    source: str
    load: Callable[[Data], Sequence[Row]]
    judge: Callable[[Judge | None], Verifier | Environment]
    samples: int = 1
    sampling: SamplingConfig = field(default=UNSAID)
    thinking: bool = True
    votes: Literal["", "text", "math"] = ""
    by: str = ""
    paper_judge: str = ""
    note: str = ""


def of_kind(kind: str, **settings: Any) -> Callable[[Judge | None], Verifier | Environment]:
    """What judges rows of this kind in training. Calling it is a ValueError where nothing does, or a judge lacks."""

    def make(judge: Judge | None) -> Verifier | Environment:
        if kind == "preference":
            return Preferred(needed(judge))
        if kind in ("judged", "proof"):
            return VERIFIERS[kind](judge=needed(judge).endpoint, **settings)
        made = VERIFIERS.get(kind) or ENVIRONMENTS.get(kind)
        if made is None:
            known = ", ".join([*VERIFIERS, *ENVIRONMENTS])
            raise ValueError(f"nothing judges rows of the kind {kind} here; there is something for {known}.")
        return made(**settings)

    return make


def needed(judge: Judge | None) -> Judge:
    """ValueError where there is none."""
    if judge is None:
        raise ValueError("the answers are judged by another model; give --judge=http://HOST:PORT/v1 and --judge_model.")
    return judge


@dataclass(frozen=True)
class Preferred:
    """1 where the judge prefers the answer to the row's reference, 0.5 on a tie; it reads both orders."""

    judge: Judge

    def verify(self, row: Row, sample: Sample) -> Verdict:
        return win_rate(self.judge, row, sample)


def user_row(name: str, kind: str, prompt: str, fields: Mapping[str, Any], *, system: str = "") -> Row:
    """The checked row of one user message. RowError where a field is missing or wrong."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    return parse_row({"id": name, "kind": kind, **fields, "responses_create_params": {"input": messages}}, where=name)


def file_rows(data: Data, name: str, source: str, make: Callable[[Mapping[str, Any], int], Row | None]) -> list[Row]:
    """A row of each record (and its number, from 0) of a file with published columns; None where it is left out.

    ValueError where a record has not the columns that `source` names.
    """
    rows = []
    for number, record in enumerate(data.records(name, source)):
        try:
            rows.append(make(record, number))
        except (KeyError, ValueError, TypeError) as error:
            fault = f"it has no column {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ValueError(f"{name}, record {number + 1}: {fault}; the file should be {source}.") from None
    return [row for row in rows if row is not None]


def own_rows(data: Data, name: str, source: str) -> Sequence[Row]:
    """The rows of a file in the schema of training rows. RowError for the first that breaks it."""
    return [parse_row(record, where=f"{name}, row {i}") for i, record in enumerate(data.records(name, source), 1)]
