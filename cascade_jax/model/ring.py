"""Causal attention when the tokens of a row are split among devices: keys and values go round a ring of them.

Ring attention (Liu, Zaharia and Abbeel 2023, arXiv 2310.01889): a rank holds its own tokens and one visiting shard of
keys, and puts what each visit gives together by its log-sum-exp. The blocks are pallas_kernels.attention's.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.model import axes
from pallas_kernels.attention import attention, attention_gradients

FLOOR = -1e30  # log-sum-exp of a query that has seen nothing


class Keys(NamedTuple):
    """What travels."""

    k: Float[Array, "B T K h"]
    v: Float[Array, "B T K h"]
    segments: Int[Array, "B T"]


def ring_attention(
    q_BTHh: Float[Array, "B T H h"],
    k_BTKh: Float[Array, "B T K h"],
    v_BTKh: Float[Array, "B T K h"],
    segments_BT: Int[Array, "B T"],
    *,
    axis: str = "context",
) -> Float[Array, "B T H h"]:
    """Attention over whole rows: rank r of the axis holds the tokens r T .. (r + 1) T - 1 of each.

    A query sees the keys of its segment up to its own place. In segment 0 it sees nothing and gives 0.
    Query head i reads kv head i // (H / K).
    """
    return _ring(q_BTHh, Keys(k_BTKh, v_BTKh, segments_BT), axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _ring(q: Array, own: Keys, axis: str) -> Array:
    return _forward(q, own, axis)[0]


def _forward(q: Array, own: Keys, axis: str) -> tuple[Array, tuple]:
    def visit(seen: tuple[Array, Array], keys: Keys, shard: Array) -> tuple[tuple[Array, Array], Keys]:
        def more() -> tuple[Array, Array]:
            out, lse = attention(q, keys.k, keys.v, **_visible(own, keys, shard, axis), return_lse=True)
            total = jnp.logaddexp(seen[1], lse)
            parts = ((seen[0], seen[1]), (out, lse))
            return sum(part.astype(jnp.float32) * jnp.exp(each - total)[..., None] for part, each in parts), total

        return jax.lax.cond(shard <= axes.index(axis), more, lambda: seen), keys

    nothing = jnp.zeros(q.shape, jnp.float32), jnp.full(q.shape[:3], FLOOR)
    (out, lse), _ = _round(visit, nothing, own, axis)
    out = out.astype(q.dtype)
    return out, (q, own, out, lse)


def _backward(axis: str, saved: tuple, d_out: Array) -> tuple[Array, Keys]:
    """The gradients of keys and values travel with them and come home."""
    q, own, out, lse = saved
    slope = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)

    def visit(dq: Array, travelling: tuple, shard: Array) -> tuple[Array, tuple]:
        keys, (dk, dv) = travelling

        def more() -> tuple[Array, Array, Array]:
            visible = _visible(own, keys, shard, axis)
            return jax.tree.map(
                jnp.add, (dq, dk, dv), attention_gradients(q, keys.k, keys.v, d_out, lse, slope, **visible)
            )

        dq_now, dk, dv = jax.lax.cond(shard <= axes.index(axis), more, lambda: (dq, dk, dv))
        return dq_now, (keys, (dk, dv))

    zeros = functools.partial(jnp.zeros_like, dtype=jnp.float32)
    dq, (_, (dk, dv)) = _round(visit, zeros(q), (own, (zeros(own.k), zeros(own.v))), axis)
    return dq.astype(q.dtype), Keys(dk.astype(own.k.dtype), dv.astype(own.v.dtype), None)


_ring.defvjp(_forward, _backward)


def _visible(own: Keys, keys: Keys, shard: Array, axis: str) -> dict[str, Array]:
    """Segments, and the places of the queries from the first visiting key on."""
    T = own.segments.shape[1]
    places = (axes.index(axis) - shard) * T + jnp.broadcast_to(jnp.arange(T), own.segments.shape)
    return {"query_segments_BT": own.segments, "key_segments_BS": keys.segments, "query_positions_BT": places}


def _round(visit: Callable, carried: object, travelling: object, axis: str) -> tuple:
    """carried, travelling = visit(carried, travelling, the rank it is from) for all ranks; after that it is at home."""
    size, rank = axes.size(axis), axes.index(axis)

    def step(state: tuple, distance: Array) -> tuple[tuple, None]:
        carried, travelling = visit(*state, (rank - distance) % size)
        return (carried, jax.lax.ppermute(travelling, axis, [(r, (r + 1) % size) for r in range(size)])), None

    return jax.lax.scan(step, (carried, travelling), jnp.arange(size))[0]
