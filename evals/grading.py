"""Verdicts on samples, fresh or read from disk; judging again takes no model and no device."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cascade_jax.reward import Verifier
from cascade_jax.reward.verdict import unjudged
from cascade_jax.rollout.environment import Environment
from cascade_jax.types import Row, Sample, Verdict
from evals import folder as folders
from evals.episodes import KEPT, is_environment, replay
from evals.folder import Record


def grade(verifier: Verifier, work: Sequence[tuple[Row, Sample]], *, threads: int = 16) -> list[Verdict]:
    """Verdicts in the order of `work`; verifiers that wait for a process or a judge wait together."""

    def one(pair: tuple[Row, Sample]) -> Verdict:
        row, sample = pair
        return unjudged(sample.stop_reason) if sample.reply is None else verifier.verify(row, sample)

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(one, work))


def regrade(folder: Path, judge: Verifier | Environment) -> list[Record]:
    """Judge every sample of the folder again, and replace its samples.jsonl once all are judged.

    An episode that broke keeps its missing verdict: there is nothing to play again. FileNotFoundError where there are
    no samples, ValueError where one belongs to no row.
    """
    with folders.claimed(folder):
        rows = {row.id: row for row in folders.read_rows(folder)}
        records = folders.read_records(folder)
        if not records:
            raise FileNotFoundError(f"{folder} holds no samples yet; go on with its evaluation first.")
        unknown = {record["row"] for record in records} - set(rows)
        if unknown:
            raise ValueError(f"{folder}: samples.jsonl names the row {min(unknown)}, which rows.jsonl has not.")
        if is_environment(judge):
            judged = [record for record in records if KEPT in record]
            verdicts = replay(judge, [(rows[record["row"]], record[KEPT]) for record in judged])
        else:
            judged = records
            verdicts = grade(judge, [(rows[record["row"]], as_sample(record)) for record in judged])
        for record, verdict in zip(judged, verdicts, strict=True):
            record["verdict"] = folders.verdict_as_json(verdict)
        folders.written_whole(folder / "samples.jsonl", (f"{json.dumps(record)}\n" for record in records))
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
