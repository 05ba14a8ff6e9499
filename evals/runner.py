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
from cascade_jax.rollout.environment import Environment
from cascade_jax.rollout.episode import make_prompt, run_prompts
from cascade_jax.rollout.episodes import run_episodes
from cascade_jax.seeding import derive
from cascade_jax.types import Group, Prompt, Row, Sample, Verdict
from evals import folder as folders
from evals.episodes import KEPT, is_environment, kept
from evals.folder import Record, Settings
from evals.grading import grade

# The sample of a prompt that is longer than the settings allow.
TOO_LONG = Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, bool), "prompt too long", version=0)


class Part(NamedTuple):
    """Samples `first` .. `first + count - 1` of a row, drawn from one seed."""

    row: Row
    first: int
    count: int


def run(
    engine: Engine,
    chat: Chat,
    judge: Verifier | Environment,
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
            fresh = _evaluate(engine, chat, judge, batch, settings)
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
    engine: Engine, chat: Chat, judge: Verifier | Environment, batch: Sequence[Part], settings: Settings
) -> list[Record]:
    seeds = [derive(settings.seed, settings.benchmark, part.row.id, part.first) for part in batch]
    if is_environment(judge):
        groups = _episodes(engine, chat, judge, batch, seeds, settings)
        verdicts = iter([sample.verdict for group in groups for sample in group.samples])
    else:
        groups = _answers(engine, chat, batch, seeds, settings)
        verdicts = iter(grade(judge, [(group.prompt.row, sample) for group in groups for sample in group.samples]))
    return [
        {
            "row": part.row.id,
            "sample": part.first + draw,
            "seed": seed,
            "draw": draw,  # of the samples of this seed
            "prompt_tokens": len(group.prompt.ids),
            **as_json(chat, sample, next(verdicts)),
            "settings": to_dict(settings),
        }
        for part, seed, group in zip(batch, seeds, groups, strict=True)
        for draw, sample in enumerate(group.samples)
    ]


def _answers(
    engine: Engine, chat: Chat, batch: Sequence[Part], seeds: Sequence[int], settings: Settings
) -> list[Group]:
    """One turn each; the prompts that are too long are not asked."""
    prompts = [
        dataclasses.replace(make_prompt(chat, part.row, settings.benchmark, thinking=settings.thinking), place=seed)
        for part, seed in zip(batch, seeds, strict=True)
    ]
    groups = [Group(prompt, (TOO_LONG,) * batch[0].count) for prompt in prompts]
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt.ids) <= settings.longest_prompt]
    if fitting:
        asked = [prompts[i] for i in fitting]
        drawn = run_prompts(engine, chat, asked, settings.sampling, samples_per_prompt=batch[0].count, seed=0)
        for i, group in zip(fitting, drawn, strict=True):
            groups[i] = group
    return groups


def _episodes(
    engine: Engine,
    chat: Chat,
    environment: Environment,
    batch: Sequence[Part],
    seeds: Sequence[int],
    settings: Settings,
) -> list[Group]:
    """Several turns each, every sample with its verdict."""
    name = settings.benchmark
    unread = np.zeros(0, np.int32)  # the environment opens the episode
    return run_episodes(
        engine,
        chat,
        {name: kept(environment)},
        [Prompt(unread, part.row, name, place=seed) for part, seed in zip(batch, seeds, strict=True)],
        settings.sampling,
        thinking={name: settings.thinking},
        longest=settings.longest_prompt,
        samples_per_prompt=batch[0].count,
        seed=0,
    )


def as_json(chat: Chat, sample: Sample, verdict: Verdict) -> Record:
    """Of an episode also `episode`, all that was written, and `later`, its ids after the chain of tokens broke."""
    info = dict(verdict.info)
    episode = {KEPT: info.pop(KEPT)} if KEPT in info else {}
    later = [{"prompt": s.prompt.tolist(), "ids": s.ids.tolist(), "mask": s.mask.tolist()} for s in sample.later]
    ids = sample.ids.tolist()
    return {
        "tokens": sample.written,
        "ids": ids,
        **({"mask": sample.mask.tolist()} if not sample.mask.all() else {}),
        **({"later": later} if later else {}),
        "text": chat.tokenizer.decode(ids),
        "reply": None if sample.reply is None else folders.reply_as_json(sample.reply),
        **episode,
        "turns": sample.turns,
        "stop_reason": sample.stop_reason,
        "verdict": folders.verdict_as_json(dataclasses.replace(verdict, info=info)),
    }
