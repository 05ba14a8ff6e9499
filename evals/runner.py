"""Rows to samples to verdicts to lines on disk; whatever kills it, the same call goes on to the same file.

Each sample has a seed of its own, out of the run's seed, the benchmark, the row and the sample. Samples are drawn and
written in batches that depend on the settings alone, so that a batch drawn again is the batch that was lost.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade_jax.config import to_dict
from cascade_jax.data.chat import Chat
from cascade_jax.reward import Verifier
from cascade_jax.rollout.engine import Engine
from cascade_jax.rollout.episode import make_prompt, run_prompts
from cascade_jax.seeding import derive
from cascade_jax.types import Row, Sample
from evals import folder as folders
from evals.folder import Record, Settings
from evals.grading import grade

# The sample of a prompt that is longer than the settings allow.
NOT_ASKED = Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, bool), "prompt too long", version=0)


class Part(NamedTuple):
    """Samples `first` .. `first + count - 1` of a row, drawn from one seed."""

    row: Row
    first: int
    count: int


def run(
    engine: Engine,
    chat: Chat,
    verifier: Verifier,
    rows: Sequence[Row],
    settings: Settings,
    folder: Path,
    *,
    on_records: Callable[[list[Record]], None] = lambda records: None,
) -> list[Record]:
    """Draw, judge and write what `folder` does not hold yet; all its records. `on_records` gets those of each batch.

    ValueError: the folder holds samples of other settings or rows, or is in use.
    """
    with folders.claimed(folder):
        rows = folders.begin(folder, settings, rows)
        todo = list(batches(rows, settings))
        records = _whole_batches(folder, todo)
        on_records(records)
        done = {(record["row"], record["sample"]) for record in records}
        for batch in todo:
            if (batch[0].row.id, batch[0].first) in done:
                continue
            fresh = _evaluate(engine, chat, verifier, batch, settings)
            folders.append(folder, fresh)
            records += fresh
            on_records(fresh)
    return records


def batches(rows: Sequence[Row], settings: Settings) -> Iterator[list[Part]]:
    """Parts of one size, at most `settings.batch` samples at a time, rows and samples in order."""
    count = max(n for n in range(1, settings.samples + 1) if settings.samples % n == 0 and n <= settings.batch)
    parts = [Part(row, first, count) for row in rows for first in range(0, settings.samples, count)]
    size = settings.batch // count
    for start in range(0, len(parts), size):
        yield parts[start : start + size]


def _whole_batches(folder: Path, todo: Sequence[Sequence[Part]]) -> list[Record]:
    """The records of batches that are complete; what a killed process left of another is cut off.

    ValueError where they are not of these rows and samples.
    """
    records = folders.read_records(folder)
    places = ((part.row.id, part.first + i) for batch in todo for part in batch for i in range(part.count))
    for number, (record, (row, sample)) in enumerate(zip(records, places, strict=False), 1):
        if (record["row"], record["sample"]) != (row, sample):
            raise ValueError(
                f"{folder / 'samples.jsonl'}:{number} is not sample {sample} of row {row}; remove the folder."
            )
    ends = itertools.accumulate(sum(part.count for part in batch) for batch in todo)
    whole = max((end for end in ends if end <= len(records)), default=0)
    folders.cut(folder, whole)
    return records[:whole]


def _evaluate(
    engine: Engine, chat: Chat, verifier: Verifier, batch: Sequence[Part], settings: Settings
) -> list[Record]:
    seeds = [derive(settings.seed, settings.benchmark, part.row.id, part.first) for part in batch]
    prompts = [
        dataclasses.replace(make_prompt(chat, part.row, settings.benchmark, thinking=settings.thinking), place=seed)
        for part, seed in zip(batch, seeds, strict=True)
    ]
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt.ids) <= settings.longest_prompt]
    samples = {i: [NOT_ASKED] * part.count for i, part in enumerate(batch)}
    if fitting:
        groups = run_prompts(
            engine,
            chat,
            [prompts[i] for i in fitting],
            settings.sampling,
            samples_per_prompt=batch[0].count,
            seed=0,  # their places are seeds
        )
        samples |= {i: group.samples for i, group in zip(fitting, groups, strict=True)}
    work = [(part.row, sample) for i, part in enumerate(batch) for sample in samples[i]]
    verdicts = iter(grade(verifier, work))
    return [
        {
            "row": part.row.id,
            "sample": part.first + draw,
            "seed": seeds[i],
            "draw": draw,  # the sampler folds it into the key of the seed
            "prompt_tokens": len(prompts[i].ids),
            **_as_json(chat, sample),
            "verdict": folders.verdict_as_json(next(verdicts)),
            "settings": to_dict(settings),
        }
        for i, part in enumerate(batch)
        for draw, sample in enumerate(samples[i])
    ]


def _as_json(chat: Chat, sample: Sample) -> Record:
    ids = sample.ids.tolist()
    return {
        "tokens": len(ids),
        "ids": ids,
        "text": chat.tokenizer.decode(ids),
        "reply": None if sample.reply is None else folders.reply_as_json(sample.reply),
        "stop_reason": sample.stop_reason,
    }
