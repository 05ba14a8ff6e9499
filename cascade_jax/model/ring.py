"""Causal attention when the tokens of a row are split among devices: keys and values go round a ring of them.

Ring attention (Liu, Zaharia and Abbeel 2023, arXiv 2310.01889) with the tiles, the running softmax and the backward
pass of FlashAttention-2 (Dao 2023, arXiv 2307.08691). A rank holds its own tokens, one visiting shard and one tile of
scores, however long the row. Letters: K kv heads, R query heads for each, t tokens of a tile, I tiles.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.model import axes
from cascade_jax.model.linear import EXACT

TILE = 1024  # queries, and keys, whose scores are in memory at a time
FLOOR = -1e30  # the largest score of a query that has seen nothing: finite, so that no inf - inf arises


def product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, precision=EXACT, preferred_element_type=jnp.float32)


class Keys(NamedTuple):
    """What travels."""

    k: Float[Array, "I B K t h"]
    v: Float[Array, "I B K t h"]
    segments: Int[Array, "I B t"]


class Softmax(NamedTuple):
    """Over the keys seen so far: sum exp(score - top) v, the largest score, sum exp(score - top); float32."""

    values: Float[Array, "*I B K R t h"]
    top: Float[Array, "*I B K R t"]
    weight: Float[Array, "*I B K R t"]


def ring_attention(
    q_BTHh: Float[Array, "B T H h"],
    k_BTKh: Float[Array, "B T K h"],
    v_BTKh: Float[Array, "B T K h"],
    segments_BT: Int[Array, "B T"],
    *,
    axis: str = "context",
) -> Float[Array, "B T H h"]:
    """attention.attend over whole rows: rank r of the axis holds the tokens r T .. (r + 1) T - 1 of each.

    A query sees the keys of its segment up to its own place. In segment 0 it sees nothing and gives 0.
    Query head i reads kv head i // (H / K).
    """
    B, T, H, h = q_BTHh.shape
    K, tile = k_BTKh.shape[2], min(TILE, T)

    def tiles(a: Array) -> Array:
        """(B, T, ...) -> (I, B, ..., t) and what followed; the last tile is filled with padding."""
        a = jnp.pad(a, [(0, 0), (0, -T % tile)] + [(0, 0)] * (a.ndim - 2))
        return a.reshape(B, -1, tile, *a.shape[2:]).swapaxes(0, 1)

    q = tiles(q_BTHh.reshape(B, T, K, H // K, h)).transpose(0, 1, 3, 4, 2, 5)
    k, v = tiles(k_BTKh).swapaxes(2, 3), tiles(v_BTKh).swapaxes(2, 3)
    out = _ring(q, Keys(k, v, tiles(segments_BT)), axis)
    return out.transpose(1, 0, 4, 2, 3, 5).reshape(B, -1, H, h)[:, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _ring(q: Array, keys: Keys, axis: str) -> Array:
    return _forward(q, keys, axis)[0]


def _forward(q: Array, keys: Keys, axis: str) -> tuple[Array, tuple[Array, ...]]:
    own, rank = keys.segments, axes.index(axis)

    def visit(seen: Softmax, keys: Keys, shard: Array) -> tuple[Softmax, Keys]:
        def queries(args: tuple) -> Softmax:
            q, segments, place, seen = args

            def tile(seen: Softmax, args: tuple) -> tuple[Softmax, None]:
                k, v, key_segments, key_place = args
                near = _meet(segments, key_segments) & (key_place <= place)
                sees = functools.partial(_sees, segments, key_segments, place, key_place)
                return jax.lax.cond(near, lambda: _absorb(seen, q, k, v, sees()), lambda: seen), None

            return jax.lax.scan(tile, seen, (*keys, _places(keys.segments, shard)))[0]

        near = _meet(own, keys.segments) & (shard <= rank)
        tiles = (q, own, _places(own, rank), seen)
        return jax.lax.cond(near, lambda: jax.lax.map(queries, tiles), lambda: seen), keys

    nothing = jnp.zeros_like(q[..., 0], jnp.float32)
    seen = Softmax(jnp.zeros_like(q, jnp.float32), nothing + FLOOR, nothing)
    seen, _ = _round(visit, seen, keys, axis)
    weight = jnp.where(seen.weight > 0, seen.weight, 1.0)
    out = (seen.values / weight[..., None]).astype(q.dtype)
    return out, (q, keys, out, seen.top + jnp.log(weight))


def _backward(axis: str, saved: tuple, d_out: Array) -> tuple[Array, Keys]:
    """The scores are computed again, tile by tile; the gradients of keys and values travel with them and come home."""
    q, keys, out, log_weight = saved
    own, rank = keys.segments, axes.index(axis)
    slope = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)

    def visit(dq: Array, travelling: tuple, shard: Array) -> tuple[Array, tuple]:
        keys, gradients = travelling

        def queries(gradients: tuple, args: tuple) -> tuple[tuple, Array]:
            segments, place, dq, *rest = args

            def tile(dq: Array, args: tuple) -> tuple[Array, tuple]:
                k, v, key_segments, key_place, dk, dv = args
                near = _meet(segments, key_segments) & (key_place <= place)
                sees = functools.partial(_sees, segments, key_segments, place, key_place)

                def more() -> tuple[Array, Array, Array]:
                    return jax.tree.map(jnp.add, (dq, dk, dv), _gradients(*rest, k, v, sees()))

                dq, dk, dv = jax.lax.cond(near, more, lambda: (dq, dk, dv))
                return dq, (dk, dv)

            dq, gradients = jax.lax.scan(tile, dq, (*keys, _places(keys.segments, shard), *gradients))
            return gradients, dq

        near = _meet(own, keys.segments) & (shard <= rank)
        everything = (own, _places(own, rank), dq, q, d_out, log_weight, slope)
        gradients, dq = jax.lax.cond(
            near, lambda: jax.lax.scan(queries, gradients, everything), lambda: (gradients, dq)
        )
        return dq, (keys, gradients)

    zeros = functools.partial(jnp.zeros_like, dtype=jnp.float32)
    dq, (_, (dk, dv)) = _round(visit, zeros(q), (keys, (zeros(keys.k), zeros(keys.v))), axis)
    return dq.astype(q.dtype), Keys(dk.astype(keys.k.dtype), dv.astype(keys.v.dtype), None)


_ring.defvjp(_forward, _backward)


def _round(visit: Callable, carried: object, travelling: object, axis: str) -> tuple:
    """carried, travelling = visit(carried, travelling, the rank it is from) for all ranks; after that it is at home."""
    size, rank = axes.size(axis), axes.index(axis)
    if size == 1:
        return visit(carried, travelling, 0)

    def step(state: tuple, distance: Array) -> tuple[tuple, None]:
        carried, travelling = visit(*state, (rank - distance) % size)
        return (carried, jax.lax.ppermute(travelling, axis, [(r, (r + 1) % size) for r in range(size)])), None

    return jax.lax.scan(step, (carried, travelling), jnp.arange(size))[0]


def _places(segments: Array, shard: Array) -> Array:
    """Where each tile of the shard begins."""
    tiles, _, tile = segments.shape
    return (shard * tiles + jnp.arange(tiles)) * tile


def _meet(segments: Int[Array, "*I B t"], others: Int[Array, "*I B t"]) -> Bool[Array, ""]:
    """False only where no row has a segment in both: the ranges of their numbers are disjoint."""

    def ends(segments: Array) -> tuple[Array, Array]:
        dims = (*range(segments.ndim - 2), segments.ndim - 1)
        return jnp.where(segments > 0, segments, jnp.iinfo(segments.dtype).max).min(dims), segments.max(dims)

    (low, high), (other_low, other_high) = ends(segments), ends(others)
    return jnp.any((low <= other_high) & (other_low <= high))


def _sees(segments: Array, key_segments: Array, place: Array, key_place: Array) -> Bool[Array, "B 1 1 t t"]:
    ahead = jnp.arange(segments.shape[1])
    causal = key_place + ahead <= (place + ahead)[:, None]
    same = (segments[:, :, None] == key_segments[:, None, :]) & (segments[:, :, None] > 0)
    return (causal & same)[:, None, None]


def _scores(q: Array, k: Array, sees: Array) -> Array:
    return jnp.where(sees, product("bkrqh,bkch->bkrqc", q, k) * q.shape[-1] ** -0.5, -jnp.inf)


def _absorb(seen: Softmax, q: Array, k: Array, v: Array, sees: Array) -> Softmax:
    """One tile of keys more."""
    scores = _scores(q, k, sees)
    top = jnp.maximum(seen.top, scores.max(-1))
    weights, kept = jnp.exp(scores - top[..., None]), jnp.exp(seen.top - top)
    values = seen.values * kept[..., None] + product("bkrqc,bkch->bkrqh", weights.astype(v.dtype), v)
    return Softmax(values, top, seen.weight * kept + weights.sum(-1))


def _gradients(
    q: Array, d_out: Array, log_weight: Array, slope: Array, k: Array, v: Array, sees: Array
) -> tuple[Array, Array, Array]:
    """What one tile adds to dq, dk and dv."""
    weights = jnp.exp(_scores(q, k, sees) - log_weight[..., None])
    dv = product("bkrqc,bkrqh->bkch", weights.astype(d_out.dtype), d_out)
    d_scores = weights * (product("bkrqh,bkch->bkrqc", d_out, v) - slope[..., None]) * q.shape[-1] ** -0.5
    d_scores = d_scores.astype(q.dtype)
    return product("bkrqc,bkch->bkrqh", d_scores, k), product("bkrqc,bkrqh->bkch", d_scores, q), dv
