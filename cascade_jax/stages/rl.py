"""An RL stage: GRPO, strictly on-policy, one optimizer step per batch (Nemotron-Cascade 2, Eq. 1)."""

import dataclasses
from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
import numpy as np

from cascade_jax.advantage import group_advantages
from cascade_jax.config import ModelConfig, StageConfig
from cascade_jax.data.pipeline import curriculum
from cascade_jax.data.pipeline import prompts as prompt_stream
from cascade_jax.loss import grpo_loss
from cascade_jax.seeding import derive
from cascade_jax.stages.batches import forward, pack_rows, sequences, with_expert_counts
from cascade_jax.stages.context import Context, transcripts
from cascade_jax.stages.rollouts import Rollouts, broken_share, collect
from cascade_jax.teacher import score
from cascade_jax.types import Batch, Params, Sequence, TrainState, Weighted
from cascade_jax.update import make_update


def run(stage: StageConfig, state: TrainState, context: Context) -> TrainState:
    """The stage from `state` to its last step; the stations stand in the order in which data travels."""
    loss = partial(policy_loss, context.model, stage)
    update = make_update(stage.optimizer, loss, context.optimizer, frozen=context.frozen)
    rl, seed, orders = stage.rl, derive(context.seed, context.name, "data"), None
    rows = {name: context.domains[name].rows["train"] for name in stage.domains}
    if rl.curriculum is not None:
        orders = curriculum(rows, stage.domains, rl.curriculum, seed=seed, draws=stage.steps * rl.prompts)
    stream = prompt_stream(rows, stage.domains, seed=seed, batch=rl.prompts, orders=orders)
    if context.position is not None:
        stream.set_state(context.position)
    for step in context.steps(state):
        context.engine.load(state.params, version=step)
        rollouts = collect(context, stream, step)  # data, rollout, reward
        if rollouts.groups:
            batch = build_batch(stage, context, rollouts)  # advantage
            context.timer.mark("batch")
            state, metrics = update(state, batch, micro_batches=stage.micro_batches)  # loss, update
        else:  # no group carries signal: there is nothing to learn from this step
            state, metrics = dataclasses.replace(state, step=state.step + 1), {}
        context.finish_step(
            state,
            {**rollouts.metrics, **metrics},
            position=stream.get_state(),
            samples=_examples(context, rollouts),
        )
        context.watch(broken_share(rollouts.metrics), int(state.step))
    return state


def build_batch(stage: StageConfig, context: Context, rollouts: Rollouts) -> Batch:
    """Advantages by group, spread over the sampled tokens; the overlong filter empties a mask, never a baseline.

    All segments of an episode have its one advantage.
    """
    rewards = jnp.asarray(rollouts.rewards_PG)
    advantages = np.asarray(
        group_advantages(rewards, normalize_std=stage.rl.normalize_std, leave_one_out=stage.rl.leave_one_out)
    )
    rows: list[Sequence] = []
    for group, group_advantage, group_reward in zip(rollouts.groups, advantages, rollouts.rewards_PG, strict=True):
        for sample, advantage, reward in zip(group.samples, group_advantage, group_reward, strict=True):
            filtered = stage.rl.overlong == "filter" and sample.truncated
            trained = not np.isnan(reward) and not filtered
            rows += sequences(group, sample, {"advantages": advantage}, trained=trained)
    if stage.rl.kl_coef > 0:
        rows = _with_reference(stage, context, rows)
    return pack_rows(rows, stage.length, micro_batches=stage.micro_batches)


def policy_loss(
    model: ModelConfig, stage: StageConfig, params: Params, batch: Batch
) -> tuple[Weighted, dict[str, Weighted]]:
    """grpo_loss on a packed batch."""
    logprobs, entropy, aux = forward(model, stage.sampling, params, batch)
    loss, metrics = grpo_loss(
        logprobs,
        advantages_BT=batch.fields["advantages"],
        mask_BT=batch.mask_BT,
        sampler_logprobs_BT=batch.fields["sampler_logprobs"],
        clip_low=stage.rl.clip_low,
        clip_high=stage.rl.clip_high,
        reference_logprobs_BT=batch.fields["reference_logprobs"] if stage.rl.kl_coef > 0 else None,
        kl_coef=stage.rl.kl_coef,
        band=stage.rl.band,
        segments_BT=batch.segments_BT,
        entropy_BT=entropy,
    )
    return loss, with_expert_counts(model, metrics, aux)


def _with_reference(stage: StageConfig, context: Context, sequences: list[Sequence]) -> list[Sequence]:
    """The same sequences with the stage's starting policy's log-probs, for the KL term."""
    scored = score(
        context.model,
        {"reference": context.reference},
        sequences,
        ["reference"] * len(sequences),
        length=stage.length,
        temperature=stage.sampling.temperature,
    )
    return [
        Sequence(s.ids, s.trained, {**s.fields, "reference_logprobs": logprobs})
        for s, logprobs in zip(sequences, scored, strict=True)
    ]


def _examples(context: Context, rollouts: Rollouts) -> list[Mapping[str, object]]:
    """One sample of the first kept group: enough to watch a run, small enough to keep."""
    if not rollouts.groups:
        return []
    return transcripts(context.chat, rollouts.groups[0], rollouts.rewards_PG[0], count=1)
