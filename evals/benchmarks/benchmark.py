"""What a benchmark is: rows, a verifier, and the settings of its published score, which are the defaults here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cascade_jax.config import JudgeConfig, SamplingConfig
from cascade_jax.data.rows import parse_row
from cascade_jax.reward import VERIFIERS, Verifier
from cascade_jax.types import Row
from evals.benchmarks.data import Data

K = 1024
# Where the paper says nothing (recipe 15): temperature 1, top-p 0.95, 128K tokens
UNSAID = SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=128 * K)


@dataclass(frozen=True)
class Benchmark:
    """`samples`, `sampling` and `thinking` are the paper's (Nemotron-Cascade 2, appendix A); `note` says where not.

    `votes`: how the answers of a row's samples are told apart for majority@k, "" where there are none to vote over.
    `by`: the field of a row that scores are also given by. `judge`: what the score needs a judge for, "" where nothing.
    """

    title: str
    source: str
    load: Callable[[Data], Sequence[Row]]
    verifier: Callable[[JudgeConfig], Verifier]
    samples: int = 1
    sampling: SamplingConfig = field(default=UNSAID)
    thinking: bool = True
    votes: Literal["", "text", "math"] = ""
    by: str = ""
    judge: str = ""
    note: str = ""


def of_kind(kind: str, **settings: Any) -> Callable[[JudgeConfig], Verifier]:
    """The verifier of training for rows of this kind, which needs no judge."""
    return lambda judge: VERIFIERS[kind](**settings)


def user_row(name: str, kind: str, prompt: str, fields: Mapping[str, Any], *, system: str = "") -> Row:
    """The checked row of one user message. RowError where a field is missing or wrong."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    return parse_row({"id": name, "kind": kind, **fields, "responses_create_params": {"input": messages}}, where=name)


def own_rows(data: Data, name: str, source: str) -> Sequence[Row]:
    """The rows of a file in the schema of training rows. RowError for the first that breaks it."""
    return [parse_row(record, where=f"{name}, row {i}") for i, record in enumerate(data.records(name, source), 1)]
