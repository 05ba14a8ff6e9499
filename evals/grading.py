"""Verdicts on samples, fresh or read from disk; judging again takes no model and no device."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cascade_jax.reward import Verifier
from cascade_jax.reward.verdict import unjudged
from cascade_jax.types import Row, Sample, Verdict
from evals import folder as folders
from evals.folder import Record


def grade(verifier: Verifier, work: Sequence[tuple[Row, Sample]], *, threads: int = 16) -> list[Verdict]:
    """Verdicts in the order of `work`; verifiers that wait for a process or a judge wait together."""

    def one(pair: tuple[Row, Sample]) -> Verdict:
        row, sample = pair
        return unjudged(sample.stop_reason) if sample.reply is None else verifier.verify(row, sample)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(one, work))


def regrade(folder: Path, verifier: Verifier) -> list[Record]:
    """Judge every sample of the folder again, and replace its samples.jsonl once all are judged.

    FileNotFoundError where there are none, ValueError where a sample belongs to no row.
    """
    rows = {row.id: row for row in folders.read_rows(folder)}
    records = folders.read_records(folder)
    if not records:
        raise FileNotFoundError(f"{folder} holds no samples yet; the evaluation that it is of has not begun.")
    unknown = {record["row"] for record in records} - set(rows)
    if unknown:
        raise ValueError(f"{folder}: samples.jsonl names the row {min(unknown)}, which rows.jsonl has not.")
    verdicts = grade(verifier, [(rows[record["row"]], as_sample(record)) for record in records])
    for record, verdict in zip(records, verdicts, strict=True):
        record["verdict"] = folders.verdict_as_json(verdict)
    folders.written_whole(folder / "samples.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
    return records


def as_sample(record: Mapping) -> Sample:
    """The sample of a line, without log-probs, which no verdict depends on."""
    ids = np.array(record["ids"], np.int32)
    return Sample(
        ids=ids,
        logprobs=np.full(len(ids), np.nan, np.float32),
        mask=np.ones(len(ids), bool),
        stop_reason=record["stop_reason"],
        version=0,
        reply=None if record["reply"] is None else folders.reply_from_json(record["reply"]),
    )
