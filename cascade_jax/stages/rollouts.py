"""Data, rollout and reward of one RL step: draw prompts, sample groups, verify, keep the groups that carry signal."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cascade_jax.advantage import groups_above, informative_groups, overlong_penalty
from cascade_jax.domains import fitting_prompts, judge_groups, roll_out
from cascade_jax.seeding import derive
from cascade_jax.stages.batches import mean
from cascade_jax.stages.context import Context
from cascade_jax.types import Group, Row, Weighted

Stream = Iterator[list[tuple[str, Row]]]


@dataclass(frozen=True)
class Rollouts:
    """rewards_PG: float32, NaN where no verdict was had. `metrics` speak of all that was generated, kept or not."""

    groups: list[Group]
    rewards_PG: np.ndarray
    metrics: dict[str, Weighted]


def generate(context: Context, stream: Stream, step: int, draw: int, *, samples: int) -> list[Group]:
    """One draw of prompts and their groups."""
    prompts = fitting_prompts(context.chat, context.domains, next(stream), longest=context.longest_prompt)
    seed = derive(context.seed, context.name, step, draw, "rollout")
    return roll_out(
        context.engine,
        context.chat,
        context.domains,
        prompts,
        context.stage.sampling,
        longest=context.longest_prompt,
        samples_per_prompt=samples,
        seed=seed,
    )


def collect(context: Context, stream: Stream, step: int) -> Rollouts:
    """Groups for one update. With the dynamic filter: draws until enough groups carry signal, surplus discarded."""
    rl = context.stage.rl
    groups: list[Group] = []
    rewards: list[np.ndarray] = []
    drawn: list[tuple[list[Group], np.ndarray]] = []
    for draw in range(rl.max_draws if rl.dynamic_filter else 1):
        fresh = generate(context, stream, step, draw, samples=rl.samples)
        context.timer.mark("rollout")
        fresh_rewards = reward(context, fresh, step, draw)
        context.timer.mark("reward")
        drawn.append((fresh, fresh_rewards))
        keep = _carries_signal(context, fresh, fresh_rewards)
        groups += [group for group, kept in zip(fresh, keep, strict=True) if kept]
        rewards += [row for row, kept in zip(fresh_rewards, keep, strict=True) if kept]
        if len(groups) >= rl.prompts:
            break
    groups, rewards = groups[: rl.prompts], rewards[: rl.prompts]
    kept_rewards = np.stack(rewards) if rewards else np.zeros((0, rl.samples), np.float32)
    return Rollouts(groups, kept_rewards, _metrics(drawn, kept=len(groups)))


def reward(context: Context, groups: list[Group], step: int, draw: int) -> np.ndarray:
    """Verdicts of all samples as rewards_PG, after the overlong penalty and the shuffling of a control run."""
    rl = context.stage.rl
    seed = derive(context.seed, context.name, step, draw, "reward")
    rewards, _ = judge_groups(context.domains, groups, seed=seed)
    if rl.overlong == "penalty":
        unknown = np.isnan(rewards)  # what has no verdict is not made a 0
        rewards = np.where(unknown, rewards, np.asarray(overlong_penalty(rewards, truncated(groups))))
    if rl.shuffle_rewards:
        rewards = np.random.default_rng(seed).permuted(rewards.ravel()).reshape(rewards.shape)
    return rewards


def truncated(groups: list[Group]) -> np.ndarray:
    """(P, G) bool: the sample hit the length cap, or its episode the limit of turns."""
    return np.array([[sample.truncated for sample in group.samples] for group in groups])


def episode_metrics(groups: list[Group]) -> dict[str, Weighted]:
    """Of episodes: turns, how often their chain of tokens broke, and those that a rule masks, of all samples."""
    samples = [sample for group in groups for sample in group.samples]
    episodes = [sample for sample in samples if sample.verdict is not None]
    if not episodes:
        return {}
    return {
        "turns": mean([sample.turns for sample in episodes]),
        "chain_breaks": mean([len(sample.later) for sample in episodes]),
        "masked": mean([sample.verdict is not None and "masked" in sample.verdict.components for sample in samples]),
    }


def broken_share(metrics: dict[str, Weighted]) -> float:
    """Of the samples of a step, those for which something on our side failed to give a verdict."""
    if "no_verdict" not in metrics:
        return 0.0
    masked = metrics["masked"].mean if "masked" in metrics else 0.0
    return float(metrics["no_verdict"].mean - masked)


def _carries_signal(context: Context, groups: list[Group], rewards_PG: np.ndarray) -> np.ndarray:
    rl = context.stage.rl
    # A KL term has a gradient in every group with a token in it, so there all of them stay.
    if rl.kl_coef > 0:
        keep = np.array([any(sample.written for sample in group.samples) for group in groups], bool)
    else:
        keep = np.asarray(informative_groups(rewards_PG))
    return keep if rl.group_floor is None else keep & np.asarray(groups_above(rewards_PG, rl.group_floor))


def _metrics(drawn: list[tuple[list[Group], np.ndarray]], *, kept: int) -> dict[str, Weighted]:
    groups = [group for part, _ in drawn for group in part]
    rewards = np.concatenate([part for _, part in drawn])
    known = ~np.isnan(rewards)
    metrics = {
        "reward": mean(rewards[known]),
        "no_verdict": mean(~known.ravel()),
        "truncated": mean(truncated(groups).ravel()),
        "response_length": mean([s.written for group in groups for s in group.samples]),
        "groups_generated": mean([len(groups)]),
        "groups_kept": mean([kept]),
        **episode_metrics(groups),
    }
    for domain in sorted({group.prompt.domain for group in groups}):
        here = np.array([group.prompt.domain == domain for group in groups])
        metrics[f"reward/{domain}"] = mean(rewards[here][known[here]])
    return metrics
