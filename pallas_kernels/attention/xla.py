"""Attention in plain jnp, a tile of scores at a time: the default on a CPU."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pallas_kernels.attention.reference import FLOOR
from pallas_kernels.attention.visibility import Visibility, mask, padded, tiles_that_meet
from pallas_kernels.product import product

TILE = 1024  # queries, and keys, whose scores are in memory at a time


def forward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    seen: Visibility,
    scale: float,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    """Out and log-sum-exp, by the running softmax."""
    T = q_BTHD.shape[1]
    q, k, v = _tiles(q_BTHD, k_BSKD, v_BSKD)
    keys, near = _key_tiles(k.shape, q.shape, seen)

    def queries(args: tuple) -> tuple[Array, Array]:
        q, visible, near = args

        def absorb(state: tuple, args: tuple) -> tuple[tuple, None]:
            k, v, key_segments, place, near = args

            def more() -> tuple[Array, Array, Array]:
                values, top, total = state
                scores = _scores(q, k, _sees(visible, key_segments, place), scale)
                new_top = jnp.maximum(top, scores.max(-1))
                weights, kept = jnp.exp(scores - new_top[..., None]), jnp.exp(top - new_top)
                values = values * kept[..., None] + product("bkrqc,bkcd->bkrqd", weights.astype(v.dtype), v)
                return values, new_top, total * kept + weights.sum(-1)

            return jax.lax.cond(near.any(), more, lambda: state), None

        nothing = jnp.zeros(q.shape[:-1], jnp.float32)
        start = (jnp.zeros(q.shape, jnp.float32), nothing + FLOOR, nothing)
        (values, top, total), _ = jax.lax.scan(absorb, start, (k, v, *keys, near))
        total = jnp.where(total > 0, total, 1.0)
        return (values / total[..., None]).astype(q.dtype), top + jnp.log(total)

    out, lse = jax.lax.map(queries, (q, _query_tiles(seen, q.shape), near))
    return _rows(out, T), _rows(lse, T)


def backward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    d_out_BTHD: Float[Array, "B T H D"],
    lse_BTH: Float[Array, "B T H"],
    slope_BTH: Float[Array, "B T H"],
    seen: Visibility,
    scale: float,
    *,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """dq, dk and dv, in dtype; the scores are computed again, tile by tile."""
    T, S, K = q_BTHD.shape[1], *k_BSKD.shape[1:3]
    q, k, v = _tiles(q_BTHD, k_BSKD, v_BSKD)
    d_out, lse, slope = (_split(a, K, q.shape[-2]) for a in (d_out_BTHD, lse_BTH, slope_BTH))
    keys, near = _key_tiles(k.shape, q.shape, seen)

    def queries(gradients: tuple[Array, Array], args: tuple) -> tuple[tuple, Array]:
        q, d_out, lse, slope, visible, near = args

        def tile(dq: Array, args: tuple) -> tuple[Array, tuple[Array, Array]]:
            k, v, key_segments, place, near, dk, dv = args

            def more() -> tuple[Array, Array, Array]:
                scores = _scores(q, k, _sees(visible, key_segments, place), scale)
                weights = jnp.exp(scores - lse[..., None])
                d_scores = weights * (product("bkrqd,bkcd->bkrqc", d_out, v) - slope[..., None]) * scale
                d_scores = d_scores.astype(q.dtype)
                return (
                    dq + product("bkrqc,bkcd->bkrqd", d_scores, k),
                    dk + product("bkrqc,bkrqd->bkcd", d_scores, q),
                    dv + product("bkrqc,bkrqd->bkcd", weights.astype(d_out.dtype), d_out),
                )

            dq, dk, dv = jax.lax.cond(near.any(), more, lambda: (dq, dk, dv))
            return dq, (dk, dv)

        dq, gradients = jax.lax.scan(tile, jnp.zeros(q.shape, jnp.float32), (k, v, *keys, near, *gradients))
        return gradients, dq

    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    everything = (q, d_out, lse, slope, _query_tiles(seen, q.shape), near)
    (dk, dv), dq = jax.lax.scan(queries, (zeros(k.shape), zeros(v.shape)), everything)
    gradients = (_rows(dq, T), *(_rows(a[:, :, :, None], S) for a in (dk, dv)))
    return tuple(a.astype(dtype) for a in gradients)


def _tiles(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """q (I, B, K, R, t, D) with the R query heads of each kv head; k and v (J, B, K, t, D)."""
    K = k.shape[2]
    q_tile, k_tile = min(TILE, q.shape[1]), min(TILE, k.shape[1])
    return _split(q, K, q_tile), *(_split(a, K, k_tile)[:, :, :, 0] for a in (k, v))


def _split(a: Array, K: int, tile: int) -> Array:
    """(B, T, H, ...) -> (tiles, B, K, H / K, tile, ...); the last tile is filled up with zeros."""
    a = jnp.pad(a, [(0, 0), (0, -a.shape[1] % tile)] + [(0, 0)] * (a.ndim - 2))
    a = a.reshape(a.shape[0], -1, tile, K, a.shape[2] // K, *a.shape[3:])
    return jnp.moveaxis(jnp.moveaxis(a, 1, 0), 2, 4)


def _rows(a: Array, length: int) -> Array:
    """The inverse of _split, cut to length."""
    a = jnp.moveaxis(jnp.moveaxis(a, 4, 2), 0, 1)
    return a.reshape(a.shape[0], -1, a.shape[3] * a.shape[4], *a.shape[5:])[:, :length]


def _query_tiles(seen: Visibility, q: tuple[int, ...]) -> tuple[Array, Array]:
    """Positions and segments of each tile of queries, (I, B, t)."""
    seen = padded(seen, q[0] * q[-2], seen.key_segments.shape[1])
    return tuple(a.reshape(q[1], q[0], q[-2]).swapaxes(0, 1) for a in (seen.query_positions, seen.query_segments))


def _key_tiles(k: tuple[int, ...], q: tuple[int, ...], seen: Visibility) -> tuple[tuple[Array, Array], Array]:
    """Segments (J, B, t) and first place (J) of each tile of keys, and which tiles of queries meet them (I, J, B)."""
    seen = padded(seen, q[0] * q[-2], k[0] * k[-2])
    segments = seen.key_segments.reshape(k[1], k[0], k[-2]).swapaxes(0, 1)
    near = tiles_that_meet(seen, q[-2], k[-2])
    return (segments, jnp.arange(k[0]) * k[-2]), near.transpose(1, 2, 0)


def _sees(visible: tuple[Array, Array], key_segments: Array, place: Array) -> Bool[Array, "B 1 1 t t"]:
    positions, segments = visible
    return mask(Visibility(positions - place, segments, key_segments))[:, None, None]


def _scores(q: Array, k: Array, sees: Array, scale: float) -> Array:
    return jnp.where(sees, product("bkrqd,bkcd->bkrqc", q, k) * scale, -jnp.inf)
