"""One optimizer step: the exact gradient of the whole batch, however it is split, and the routers' balancing rule."""

import functools
import re
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from cascade_jax.config import OptimizerConfig
from cascade_jax.leaves import by_path, map_by_path, with_leaves
from cascade_jax.optimizer import is_router_bias, resting
from cascade_jax.types import Params, TrainState, Weighted, combine

Metrics = dict[str, Weighted]
Leaves = dict[str, Array]  # by path
# A loss is one mean, or several that are added, each over its own weight (a policy loss and a balance loss).
Loss = Callable[[Params, Any], tuple[Weighted | tuple[Weighted, ...], Metrics]]


class Update(Protocol):
    def __call__(self, state: TrainState, batch: Any, *, micro_batches: int = 1) -> tuple[TrainState, Metrics]: ...


def make_update(
    config: OptimizerConfig,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    frozen: Callable[[str], bool] | None = None,
) -> Update:
    """The jitted update; it takes the state's memory over (donation).

    The gradient is that of sum(totals) / sum(weights) over the whole batch, whatever `micro_batches`; ValueError where
    the rows do not divide by it. `frozen` is asked for each leaf's path ("layers/3/mixer/up"): True = it never changes;
    no gradient is computed for it, and an optimizer made with the same `frozen` keeps no state for it. With
    `config.offload` the moments come from and go to the memory of the host.
    A step whose gradient is not finite leaves params and optimizer as they were and counts in `nonfinite_steps`. Where
    the loss gives `expert_counts` (total: (layers, E)), the routers' biases move by `config.router_bias_rate`.
    Metrics: those of the loss, `loss`, `grad_norm` (before the clip), `nonfinite_steps`.
    """

    rests = resting(config, frozen)

    @functools.partial(jax.jit, static_argnames="micro_batches", donate_argnums=0)
    def update(state: TrainState, batch: Any, *, micro_batches: int = 1) -> tuple[TrainState, Metrics]:
        moving = {path: leaf for path, leaf in by_path(state.params).items() if not rests(path)}
        gradient, terms, metrics = _gradient(loss, state.params, moving, batch, micro_batches)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm)
        # An optimizer takes a whole tree; of the zeros for what rests, nothing is left once it is compiled.
        whole = map_by_path(lambda path, leaf: gradient.get(path, jnp.zeros_like(leaf)), state.params)
        moments = _in(jax.memory.Space.Device, state.optimizer_state) if config.offload else state.optimizer_state
        changes, optimizer_state = optimizer.update(whole, moments, state.params)
        changes = {path: change for path, change in by_path(changes).items() if path in moving}
        params = with_leaves(state.params, optax.apply_updates(moving, changes))
        counts = metrics.pop("expert_counts", None)
        if counts is not None and config.router_bias_rate > 0:
            params = _balance_routers(params, counts.total, config.router_bias_rate, frozen=frozen)
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, optimizer_state),
            (state.params, moments),
        )
        if config.offload:
            optimizer_state = _in(jax.memory.Space.Host, optimizer_state)
        one = jnp.ones((), jnp.float32)
        metrics["loss"] = terms[0] if len(terms) == 1 else Weighted(sum(term.mean for term in terms), one)
        metrics["grad_norm"] = Weighted(norm, one)
        metrics["nonfinite_steps"] = Weighted(1.0 - finite, one)
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return update


def _in(space: jax.memory.Space, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, space) if leaf.ndim else leaf, tree)


def _gradient(
    loss: Loss, params: Params, moving: Leaves, batch: Any, micro_batches: int
) -> tuple[Leaves, tuple[Weighted, ...], Metrics]:
    """(gradient of the sum of the terms' means by `moving`, the terms, the loss's metrics) over the whole batch."""

    def totals(moving: Leaves, part: Any) -> tuple[tuple[Array, ...], tuple[tuple[Array, ...], Metrics]]:
        value, metrics = loss(with_leaves(params, moving), part)
        terms = (value,) if isinstance(value, Weighted) else value
        return tuple(term.total for term in terms), (tuple(term.weight for term in terms), metrics)

    if micro_batches == 1:
        sums, pullback, (weights, metrics) = jax.vjp(lambda p: totals(p, batch), moving, has_aux=True)
        (gradient,) = pullback(tuple(_inverse(weight).astype(s.dtype) for weight, s in zip(weights, sums, strict=True)))
        return gradient, tuple(map(Weighted, sums, weights)), metrics

    # The weights are known at the end only, so each term's gradient is summed apart and divided afterwards.
    def add_part(gradients: tuple[Leaves, ...], part: Any) -> tuple[tuple[Leaves, ...], Any]:
        sums, pullback, (weights, metrics) = jax.vjp(lambda p: totals(p, part), moving, has_aux=True)
        units = (tuple(jnp.full_like(s, i == j) for j, s in enumerate(sums)) for i in range(len(sums)))
        gradients = jax.tree.map(jnp.add, gradients, tuple(pullback(unit)[0] for unit in units))
        return gradients, (tuple(map(Weighted, sums, weights)), metrics)

    parts = _split(batch, micro_batches)
    shapes, _ = jax.eval_shape(totals, moving, jax.tree.map(lambda x: x[0], parts))
    start = tuple(jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), moving) for _ in shapes)
    gradients, (terms, metrics) = jax.lax.scan(add_part, start, parts)
    terms = jax.tree.map(lambda x: x.sum(axis=0), terms)
    metrics = functools.reduce(combine, [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(micro_batches)])
    scales = [_inverse(term.weight) for term in terms]

    def mean(param: Array, *sums: Array) -> Array:
        return sum(x * scale for x, scale in zip(sums, scales, strict=True)).astype(param.dtype)

    return jax.tree.map(mean, moving, *gradients), terms, metrics


def _split(batch: Any, micro_batches: int) -> Any:
    """Every leaf (B, ...) as (micro_batches, B / micro_batches, ...)."""

    def one(leaf: Array) -> Array:
        rows = leaf.shape[0]
        if rows % micro_batches:
            raise ValueError(
                f"{rows} rows do not divide into micro_batches={micro_batches}; choose a divisor of the rows."
            )
        # Part i takes rows i, i + micro_batches, ...: rows split over devices stay where they are.
        return leaf.reshape(rows // micro_batches, micro_batches, *leaf.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(one, batch)


def _inverse(weight: Array) -> Array:
    """1 / weight; 0 where nothing took part."""
    return jnp.where(weight == 0, 0.0, 1.0 / jnp.where(weight == 0, 1.0, weight))


def _balance_routers(
    params: Params, counts: Float[Array, "layers E"], rate: float, *, frozen: Callable[[str], bool] | None
) -> Params:
    """bias_e += rate * sign(mean(n) - n_e), per MoE layer in the order of layers (arXiv 2408.15664)."""
    steps = rate * jnp.sign(counts.mean(axis=1, keepdims=True) - counts)
    biases = {path: leaf for path, leaf in by_path(params).items() if is_router_bias(path)}
    in_order = sorted(biases, key=lambda path: [int(number) for number in re.findall(r"\d+", path)])
    moved = {path: biases[path] + steps[layer] for layer, path in enumerate(in_order)}
    return with_leaves(params, {path: bias for path, bias in moved.items() if frozen is None or not frozen(path)})
