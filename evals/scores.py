"""The figures of one benchmark out of its records, and of two checkpoints side by side."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cascade_jax.reward.math import MathAnswer
from cascade_jax.types import Reply, Row, Sample
from evals import statistics
from evals.benchmarks.benchmark import Benchmark
from evals.folder import Record, Settings
from evals.statistics import Estimate, Scores

ALARM = 0.05  # share of samples without a verdict above which a score is not to be trusted

PER_CHECKPOINT = ("checkpoint", "weights", "rows", "batch")  # settings in which two that are compared may differ


def summary(benchmark: Benchmark, settings: Settings, rows: Sequence[Row], records: Sequence[Record]) -> dict[str, Any]:
    """All figures, in percent (0 to 100) where they are scores. `records`: some or all of the samples of `rows`."""
    scores_RK = as_scores(rows, records, settings.samples)
    powers = [2**i for i in range(settings.samples.bit_length()) if 2**i < settings.samples]
    answers = answers_of(rows, records, settings.samples)
    votes = benchmark.votes and settings.samples > 1
    return {
        "benchmark": settings.benchmark,
        "checkpoint": settings.checkpoint,
        "settings": dataclasses.asdict(settings),
        "rows": len(rows),
        "samples": settings.samples,
        "drawn": len(records),
        "avg@k": percent(statistics.average_at_k(scores_RK)),
        "pass@k": {str(k): percent(statistics.pass_at_k(scores_RK, k)) for k in [*powers, settings.samples]},
        "majority@k": percent(_majority(benchmark, scores_RK, answers)) if votes else None,
        "by": _by(benchmark.by, rows, scores_RK),
        "components": _components(records),
        **counts(benchmark, records),
    }


def counts(benchmark: Benchmark, records: Sequence[Record]) -> dict[str, Any]:
    """What is always told beside a score. A sample without a verdict is masked: it takes no part in any mean."""
    reasons = Counter(r["verdict"]["no_verdict"] for r in records if r["verdict"]["no_verdict"] is not None)
    tokens = np.array([record["tokens"] for record in records] or [0])
    unknown = sum(reasons.values())
    return {
        "no_verdict": unknown,
        "no_verdict_reasons": dict(reasons.most_common()),
        "alarm": unknown > ALARM * len(records),
        "no_answer": sum(no_answer(benchmark, record) for record in records),
        "truncated": sum(record["stop_reason"] in ("length", "turns") for record in records),
        "malformed": sum(bool(record["reply"] and record["reply"]["malformed"]) for record in records),
        "tokens": {"mean": float(tokens.mean()), "median": float(np.median(tokens)), "total": int(tokens.sum())},
    }


def no_answer(benchmark: Benchmark, record: Record) -> bool:
    """Nothing to judge: an empty reply, or none out of which the verifier could take an answer."""
    reply = record["reply"]
    if reply is None or record["verdict"]["no_verdict"] is not None:
        return False  # that is counted as it is
    if benchmark.votes:
        return record["verdict"]["info"].get("extracted") is None
    return not reply["content"].strip() and not reply["tool_calls"]


def as_scores(rows: Sequence[Row], records: Sequence[Record], samples: int) -> Scores:
    """scores_RK: the rewards, NaN where a sample has no verdict or is not drawn yet."""
    place = {row.id: i for i, row in enumerate(rows)}
    scores_RK = np.full((len(rows), samples), np.nan)
    for record in records:
        reward = record["verdict"]["reward"]
        scores_RK[place[record["row"]], record["sample"]] = np.nan if reward is None else reward
    return scores_RK


def answers_of(rows: Sequence[Row], records: Sequence[Record], samples: int) -> list[list[str | None]]:
    """What the verifier took out of each sample, None where it found no answer."""
    place = {row.id: i for i, row in enumerate(rows)}
    answers: list[list[str | None]] = [[None] * samples for _ in rows]
    for record in records:
        answers[place[record["row"]]][record["sample"]] = record["verdict"]["info"].get("extracted")
    return answers


def _majority(benchmark: Benchmark, scores_RK: Scores, answers: Sequence[Sequence[str | None]]) -> Estimate:
    if benchmark.votes == "text":
        return statistics.majority_at_k(scores_RK, answers)
    verifier = MathAnswer()
    try:
        return statistics.majority_at_k(scores_RK, answers, same=equal_in_mathematics(verifier))
    finally:
        verifier.close()


def equal_in_mathematics(verifier: MathAnswer) -> Callable[[str, str], bool]:
    """Whether two answers are one, as the verifier would have it of an answer and the expected one."""

    def same(one: str, other: str) -> bool:
        row = Row(id="votes", kind="math", messages=(), fields={"expected_answer": one})
        nothing = np.zeros(0)
        reply = Reply(f"\\boxed{{{other}}}")
        return verifier.verify(row, Sample(nothing, nothing, nothing, "stop", 0, reply)).reward == 1.0

    return same


def _by(field: str, rows: Sequence[Row], scores_RK: Scores) -> dict[str, Any]:
    """The average of each part of the rows, and the mean over the parts."""
    if not field:
        return {}
    names = [str(row.fields.get(field, row.extra.get(field, "?"))) for row in rows]
    parts = {
        name: statistics.average_at_k(scores_RK[[i for i, n in enumerate(names) if n == name]])
        for name in sorted(set(names))
    }
    known = [part.value for part in parts.values() if part.value is not None]
    found: dict[str, Any] = {name: percent(part) for name, part in parts.items()}
    return {"parts": found, "mean_of_parts": 100 * float(np.mean(known)) if known else None}


def _components(records: Sequence[Record]) -> dict[str, float]:
    """The mean of every number that verdicts carry, such as the share of instructions followed."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["verdict"]["components"].items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: float(np.mean(found)) for name, found in sorted(values.items())}


def percent(estimate: Estimate) -> dict[str, float | int | None]:
    """An estimate as JSON, in percent."""
    found = dataclasses.asdict(estimate)
    return {k: v if v is None or k == "rows" else 100 * v for k, v in found.items()}


def comparison(
    settings: Sequence[Settings], rows: Sequence[Row], records: Sequence[Sequence[Record]]
) -> dict[str, Any]:
    """The second checkpoint against the first, on rows that both have; settings and records are of the two."""
    ids = {row.id for row in rows}
    tables = [
        as_scores(rows, [record for record in found if record["row"] in ids], one.samples)
        for one, found in zip(settings, records, strict=True)
    ]
    found = statistics.compare(*tables)
    first, second = (dataclasses.asdict(one) for one in settings)
    return {
        "benchmark": first["benchmark"],
        "first": first["checkpoint"],
        "second": second["checkpoint"],
        "rows": len(rows),
        "avg@k": [percent(statistics.average_at_k(table)) for table in tables],
        "difference": percent(found.difference),
        "better": found.better,
        "worse": found.worse,
        "equal": found.equal,
        "permutation_p": found.p,
        "sign_p": found.sign_p,
        "settings_differ": [key for key in first if first[key] != second[key] and key not in PER_CHECKPOINT],
    }
