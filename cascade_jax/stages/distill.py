"""Multi-domain on-policy distillation: a sample is scored by its domain's teacher (Nemotron-Cascade 2, Eqs. 2-4)."""

import dataclasses
from functools import partial

import numpy as np

from cascade_jax.config import ModelConfig, StageConfig
from cascade_jax.data.pipeline import prompts as prompt_stream
from cascade_jax.loss import mopd_loss
from cascade_jax.seeding import derive
from cascade_jax.stages.batches import forward, mean, pack_rows, sequences, with_expert_counts
from cascade_jax.stages.context import Context, transcripts
from cascade_jax.stages.rollouts import broken_share, episode_metrics, generate, truncated
from cascade_jax.teacher import score
from cascade_jax.types import Batch, Group, Params, Sequence, TrainState, Weighted
from cascade_jax.update import make_update


def run(stage: StageConfig, state: TrainState, context: Context) -> TrainState:
    """The stage from `state` to its last step: no reward, only the teachers' opinion of what the student wrote."""
    loss = partial(distillation_loss, context.model, stage)
    update = make_update(stage.optimizer, loss, context.optimizer, frozen=context.frozen)
    stream = prompt_stream(
        {name: context.domains[name].rows["train"] for name in stage.domains},
        stage.domains,
        seed=derive(context.seed, context.name, "data"),
        batch=stage.distill.prompts,
    )
    if context.position is not None:
        stream.set_state(context.position)
    for step in context.steps(state):
        context.engine.load(state.params, version=step)
        groups = generate(context, stream, step, 0, samples=stage.distill.samples)  # data, rollout
        context.timer.mark("rollout")
        rows = teach(stage, context, groups)  # teacher
        context.timer.mark("teacher")
        if rows:
            batch = pack_rows(rows, stage.length, micro_batches=stage.micro_batches)
            state, metrics = update(state, batch, micro_batches=stage.micro_batches)  # advantage, loss, update
        else:  # no episode came to a first token
            state, metrics = dataclasses.replace(state, step=state.step + 1), {}
        rollout_metrics = _metrics(groups)
        context.finish_step(
            state,
            {**rollout_metrics, **metrics},
            position=stream.get_state(),
            samples=transcripts(context.chat, groups[0], np.full(len(groups[0].samples), np.nan), count=1),
        )
        context.watch(broken_share(rollout_metrics), int(state.step))
    return state


def teach(stage: StageConfig, context: Context, groups: list[Group]) -> list[Sequence]:
    """Every sample with its domain teacher's log-probs in the distribution that it was sampled from."""
    pairs = [
        (group.prompt.domain, row)
        for group in groups
        for sample in group.samples
        for row in sequences(group, sample, {})
    ]
    rows = [row for _, row in pairs]
    scored = score(
        context.model,
        context.teachers,
        rows,
        [domain for domain, _ in pairs],
        length=stage.length,
        temperature=stage.sampling.temperature,
        top_p=stage.sampling.top_p,
        top_k=stage.sampling.top_k,
    )
    return [
        Sequence(s.ids, s.trained, {**s.fields, "teacher_logprobs": logprobs})
        for s, logprobs in zip(rows, scored, strict=True)
    ]


def distillation_loss(
    model: ModelConfig, stage: StageConfig, params: Params, batch: Batch
) -> tuple[Weighted, dict[str, Weighted]]:
    """mopd_loss on a packed batch."""
    logprobs, entropy, aux = forward(model, stage.sampling, params, batch)
    loss, metrics = mopd_loss(
        logprobs,
        teacher_logprobs_BT=batch.fields["teacher_logprobs"],
        sampler_logprobs_BT=batch.fields["sampler_logprobs"],
        mask_BT=batch.mask_BT,
        band=stage.distill.band,
        advantage_clip=stage.distill.advantage_clip,
        aggregate=stage.distill.aggregate,
        segments_BT=batch.segments_BT,
        entropy_BT=entropy,
    )
    return loss, with_expert_counts(model, metrics, aux)


def _metrics(groups: list[Group]) -> dict[str, Weighted]:
    samples = [sample for group in groups for sample in group.samples]
    unjudged = [sample.verdict is not None and sample.verdict.no_verdict is not None for sample in samples]
    episodes = episode_metrics(groups)
    return {
        "truncated": mean(truncated(groups).ravel()),
        "response_length": mean([sample.written for sample in samples]),
        **episodes,
        **({"no_verdict": mean(unjudged)} if episodes else {}),
    }
