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
from cascade_jax.types import Params, TrainState, Weighted, combine

Metrics = dict[str, Weighted]
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
    the rows do not divide by it. `frozen` is asked for each leaf's path ("layers/3/mixer/up"): True = it never changes.
    A step whose gradient is not finite leaves params and optimizer as they were and counts in `nonfinite_steps`. Where
    the loss gives `expert_counts` (total: (layers, E)), the routers' biases move by `config.router_bias_rate`.
    Metrics: those of the loss, `loss`, `grad_norm` (before the clip), `nonfinite_steps`.
    """

    asked = frozen or (lambda path: False)

    def still(path: str) -> bool:
        return asked(path) or is_router_bias(path) or (config.freeze_router and is_router_weight(path))

    @functools.partial(jax.jit, static_argnames="micro_batches", donate_argnums=0)
    def update(state: TrainState, batch: Any, *, micro_batches: int = 1) -> tuple[TrainState, Metrics]:
        gradient, terms, metrics = _gradient(loss, state.params, batch, micro_batches)
        gradient = _zero(still, gradient)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm)
        changes, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, _zero(still, changes))
        counts = metrics.pop("expert_counts", None)
        if counts is not None and config.router_bias_rate > 0:
            params = _balance_routers(params, counts.total, config.router_bias_rate, frozen=asked)
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, optimizer_state),
            (state.params, state.optimizer_state),
        )
        one = jnp.ones((), jnp.float32)
        metrics["loss"] = terms[0] if len(terms) == 1 else Weighted(sum(term.mean for term in terms), one)
        metrics["grad_norm"] = Weighted(norm, one)
        metrics["nonfinite_steps"] = Weighted(1.0 - finite, one)
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return update


def is_router_weight(path: str) -> bool:
    return path.split("/")[-1] == "router"


def is_router_bias(path: str) -> bool:
    """The correction bias, which steers the choice of experts alone: it has no gradient."""
    return path.split("/")[-1] == "router_bias"


def _gradient(
    loss: Loss, params: Params, batch: Any, micro_batches: int
) -> tuple[Params, tuple[Weighted, ...], Metrics]:
    """(gradient of the sum of the terms' means, the terms, the loss's metrics) over the whole batch."""

    def totals(params: Params, part: Any) -> tuple[tuple[Array, ...], tuple[tuple[Array, ...], Metrics]]:
        value, metrics = loss(params, part)
        terms = (value,) if isinstance(value, Weighted) else value
        return tuple(term.total for term in terms), (tuple(term.weight for term in terms), metrics)

    if micro_batches == 1:
        sums, pullback, (weights, metrics) = jax.vjp(lambda p: totals(p, batch), params, has_aux=True)
        (gradient,) = pullback(tuple(_inverse(weight).astype(s.dtype) for weight, s in zip(weights, sums, strict=True)))
        return gradient, tuple(map(Weighted, sums, weights)), metrics

    # The weights are known at the end only, so each term's gradient is summed apart and divided afterwards.
    def add_part(gradients: tuple[Params, ...], part: Any) -> tuple[tuple[Params, ...], Any]:
        sums, pullback, (weights, metrics) = jax.vjp(lambda p: totals(p, part), params, has_aux=True)
        units = (tuple(jnp.full_like(s, i == j) for j, s in enumerate(sums)) for i in range(len(sums)))
        gradients = jax.tree.map(jnp.add, gradients, tuple(pullback(unit)[0] for unit in units))
        return gradients, (tuple(map(Weighted, sums, weights)), metrics)

    parts = _split(batch, micro_batches)
    shapes, _ = jax.eval_shape(totals, params, jax.tree.map(lambda x: x[0], parts))
    start = tuple(jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), params) for _ in shapes)
    gradients, (terms, metrics) = jax.lax.scan(add_part, start, parts)
    terms = jax.tree.map(lambda x: x.sum(axis=0), terms)
    metrics = functools.reduce(combine, [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(micro_batches)])
    scales = [_inverse(term.weight) for term in terms]

    def mean(param: Array, *sums: Array) -> Array:
        return sum(x * scale for x, scale in zip(sums, scales, strict=True)).astype(param.dtype)

    return jax.tree.map(mean, params, *gradients), terms, metrics


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


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _zero(still: Callable[[str], bool], tree: Params) -> Params:
    return jax.tree_util.tree_map_with_path(lambda p, x: jnp.zeros_like(x) if still(_path(p)) else x, tree)


def _balance_routers(
    params: Params, counts: Float[Array, "layers E"], rate: float, *, frozen: Callable[[str], bool]
) -> Params:
    """bias_e += rate * sign(mean(n) - n_e), per MoE layer in the order of layers (arXiv 2408.15664)."""
    steps = rate * jnp.sign(counts.mean(axis=1, keepdims=True) - counts)
    biases = [_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(params) if is_router_bias(_path(path))]
    biases.sort(key=lambda path: [int(number) for number in re.findall(r"\d+", path)])
    row = {path: index for index, path in enumerate(biases) if not frozen(path)}

    def one(path: tuple[Any, ...], leaf: Array) -> Array:
        return leaf + steps[row[_path(path)]] if _path(path) in row else leaf

    return jax.tree_util.tree_map_with_path(one, params)
