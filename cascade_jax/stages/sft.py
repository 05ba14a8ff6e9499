"""Supervised fine-tuning: packed demonstrations, loss on assistant tokens, optional expert balancing."""

import functools
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cascade_jax.config import ModelConfig, SamplingConfig, StageConfig
from cascade_jax.data.pipeline import Plan, sft_batches
from cascade_jax.data.rows import demonstrated
from cascade_jax.loss import sft_loss
from cascade_jax.mesh import by_part
from cascade_jax.seeding import derive
from cascade_jax.stages.batches import forward, with_expert_counts
from cascade_jax.stages.context import Context, Event
from cascade_jax.types import Batch, Params, Sequence, TrainState, Weighted
from cascade_jax.update import make_update


def run(stage: StageConfig, state: TrainState, context: Context) -> TrainState:
    """The stage from `state` to its last step."""
    loss = partial(supervised_loss, context.model, stage)
    update = make_update(stage.optimizer, loss, context.optimizer, frozen=context.frozen)
    stream = sft_batches(
        {name: render_rows(context, name) for name in stage.domains},
        stage.domains,
        seed=derive(context.seed, context.name, "data"),
        rows=stage.sft.rows,
        length=stage.length,
    )
    if context.position is not None:
        stream.set_state(context.position)
    for _ in context.steps(state):
        plan = stream.plan()  # data
        batch = rows_here(plan)
        context.timer.mark("data")
        state, metrics = update(state, batch, micro_batches=stage.micro_batches)  # loss, update
        filled = Weighted(np.float64(plan.tokens), np.float64(plan.rows * plan.length))
        context.finish_step(state, {"packing": filled, **metrics}, position=stream.get_state(), samples=[])
    return state


def rows_here(plan: Plan) -> Batch:
    """The planned batch over the mesh in use; this process makes the arrays of the rows that its devices hold."""
    shape, made = (plan.rows, plan.length), functools.cache(lambda start, stop: plan.batch(slice(start, stop)))

    def field(name: str) -> Array:
        return by_part(shape, lambda rows, tokens: getattr(made(rows.start, rows.stop), name)[:, tokens])

    return Batch(*(field(name) for name in ("ids_BT", "segments_BT", "targets_BT", "mask_BT")))


def render_rows(context: Context, domain: str) -> list[Sequence]:
    """The domain's demonstrations as token sequences, in the order of its rows, without those that fit no row."""
    sequences = []
    for row in context.domains[domain].rows["train"]:
        messages = [*row.messages, *demonstrated(row)]
        rendered = context.chat.render(messages, row.tools, thinking=context.domains[domain].thinking)
        sequences.append(Sequence(rendered.ids, rendered.trained))
    fitting = [sequence for sequence in sequences if len(sequence.ids) <= context.stage.length]
    if len(fitting) < len(sequences):
        left_out = len(sequences) - len(fitting)
        context.emit(
            Event("note", context.name, {"text": f"{left_out} rows of {domain} are longer than a packed row."})
        )
    return fitting


def supervised_loss(
    model: ModelConfig, stage: StageConfig, params: Params, batch: Batch
) -> tuple[Weighted | tuple[Weighted, ...], dict[str, Weighted]]:
    """sft_loss, and the sequence balance loss where the stage sets a coefficient for it."""
    logprobs, entropy, aux = forward(model, SamplingConfig(), params, batch)
    loss, metrics = sft_loss(logprobs, mask_BT=batch.mask_BT)
    metrics = with_expert_counts(model, {**metrics, "entropy": _masked(entropy, batch.mask_BT)}, aux)
    if stage.sft.balance_coef == 0:
        return loss, metrics
    balance = Weighted(stage.sft.balance_coef * aux.balance_loss.total, aux.balance_loss.weight)
    return (loss, balance), {**metrics, "balance_loss": aux.balance_loss}


def _masked(values_BT: Array, mask_BT: Array) -> Weighted:
    return Weighted(jnp.where(mask_BT, values_BT, 0.0).sum(), mask_BT.sum().astype(jnp.float32))
