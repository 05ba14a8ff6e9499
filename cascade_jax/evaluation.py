"""Scores of one policy on the held-out rows of every domain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cascade_jax.config import EvalConfig
from cascade_jax.data.chat import Chat
from cascade_jax.domains import Domain, fitting_prompts, roll_out, score_groups
from cascade_jax.reward import Verdict
from cascade_jax.rollout.engine import Engine
from cascade_jax.seeding import derive
from cascade_jax.stages.context import transcripts
from cascade_jax.types import Group


@dataclass(frozen=True)
class Score:
    """score: mean reward in [0, 1] of the samples with a verdict, with its 95 % Wilson interval (low, high)."""

    score: float | None  # None where no sample had a verdict
    low: float
    high: float
    count: int
    no_verdict: int
    truncated: float
    length: float  # mean tokens that the policy wrote in a sample


def evaluate(
    engine: Engine,
    chat: Chat,
    domains: Mapping[str, Domain],
    *,
    config: EvalConfig,
    longest_prompt: int,
    split: str,
    seed: int,
    check: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Score], list[dict[str, Any]]]:
    """domain -> Score, and some transcripts. The same rows and the same sample seeds for every checkpoint of a run.

    `check` is called between batches; what it raises (a stop that was asked for) passes through. `note` is told
    of domains in which more samples than `alarm_share` had no verdict.
    """
    scores: dict[str, Score] = {}
    examples: list[dict[str, Any]] = []
    for name, domain in domains.items():
        if split not in domain.rows or not domain.judged:
            continue
        rows = [domain.rows[split][i] for i in range(min(config.prompts, len(domain.rows[split])))]
        groups: list[Group] = []
        for start in range(0, len(rows), config.batch):
            check()
            part = [(name, row) for row in rows[start : start + config.batch]]
            prompts = fitting_prompts(chat, domains, part, longest=longest_prompt)
            batch_seed = derive(seed, "evaluation", split, name, start)
            groups += roll_out(
                engine,
                chat,
                domains,
                prompts,
                config.sampling,
                longest=longest_prompt,
                samples_per_prompt=config.samples,
                seed=batch_seed,
            )
        verdicts = score_groups(domain, groups)
        scores[name] = score = summarize(groups, verdicts)
        if score.no_verdict > config.alarm_share * (score.count + score.no_verdict):
            note(f"{score.no_verdict} of {score.count + score.no_verdict} samples of {name} ({split}) had no verdict.")
        for group, row in list(zip(groups, verdicts, strict=True))[: config.transcripts]:
            examples += transcripts(chat, group, _rewards(row), count=1)
    return scores, examples


def summarize(groups: list[Group], verdicts: list[list[Verdict]]) -> Score:
    """The Score of one domain."""
    rewards = np.concatenate([_rewards(row) for row in verdicts])
    known = rewards[~np.isnan(rewards)]
    samples = [sample for group in groups for sample in group.samples]
    mean = float(known.mean()) if len(known) else None
    low, high = wilson(mean, len(known)) if mean is not None else (0.0, 1.0)
    return Score(
        score=mean,
        low=low,
        high=high,
        count=len(known),
        no_verdict=len(rewards) - len(known),
        truncated=float(np.mean([sample.truncated for sample in samples])),
        length=float(np.mean([sample.written for sample in samples])),
    )


def wilson(mean: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927); z = 1.96 gives 95 %."""
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    return float(max(0.0, centre - half)), float(min(1.0, centre + half))


def _rewards(verdicts: list[Verdict]) -> np.ndarray:
    return np.array([np.nan if v.no_verdict is not None else v.reward for v in verdicts])
