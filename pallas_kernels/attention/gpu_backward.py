"""FlashAttention-2 backward for GPUs (Pallas with Triton): one kernel for dq, one for dk and dv.

A program of the second takes one tile of keys and goes over all query heads that read it.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pallas_kernels.attention.gpu_tiles import Tiles, bounds, filled, sees, tiles
from pallas_kernels.attention.visibility import Visibility, padded, tiles_that_meet
from pallas_kernels.product import LOG2_E, contract


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
    interpret: bool = False,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """dq, dk and dv, in dtype."""
    T, S = q_BTHD.shape[1], k_BSKD.shape[1]
    of_queries = (q_BTHD, d_out_BTHD, lse_BTH * LOG2_E, slope_BTH)
    call = functools.partial(_call, of_queries, (k_BSKD, v_BSKD), seen, scale, dtype, interpret)
    return call("queries")[0][:, :T], *(a[:, :S] for a in call("keys"))


def _call(
    of_queries: tuple, of_keys: tuple, seen: Visibility, scale: float, dtype: jnp.dtype, interpret: bool, direction: str
) -> list[Array]:
    B, _, H, D = of_queries[0].shape
    K = of_keys[0].shape[2]
    size = tiles(direction, of_queries[0], of_keys[0])
    q, d_out, lse, slope = (filled(a, size.rows) for a in of_queries)
    lse, slope = lse.swapaxes(1, 2), slope.swapaxes(1, 2)  # (B, H, T)
    k, v = (filled(a, size.columns) for a in of_keys)
    seen = padded(seen, size.rows, size.columns)
    meet = tiles_that_meet(seen, size.queries, size.keys)
    R, n, m = size.ratio, size.queries, size.keys
    if direction == "queries":
        kernel, name, outputs = _kernel_queries, "attention_dq_kernel", [(q.shape, n)]
        grid = (size.rows // n, H, B)
        of_q = pl.BlockSpec((None, n, None, D), lambda i, h, b: (b, i, h, 0))
        of_k = pl.BlockSpec((None, size.columns, None, D), lambda i, h, b: (b, 0, h // R, 0))
        of_row = pl.BlockSpec((None, None, n), lambda i, h, b: (b, h, i))
        of_query, of_key = pl.BlockSpec((None, n), lambda i, h, b: (b, i)), pl.BlockSpec((None, size.columns), _row)
        results = [of_q]
    else:
        kernel, name, outputs = _kernel_keys, "attention_dkv_kernel", [(k.shape, m), (v.shape, m)]
        grid, meet = (size.columns // m, K, B), meet.swapaxes(1, 2)
        of_q = pl.BlockSpec((None, size.rows, R, D), lambda j, h, b: (b, 0, h, 0))
        of_k = pl.BlockSpec((None, m, None, D), lambda j, h, b: (b, j, h, 0))
        of_row = pl.BlockSpec((None, R, size.rows), lambda j, h, b: (b, h, 0))
        of_query, of_key = pl.BlockSpec((None, size.rows), _row), pl.BlockSpec((None, m), lambda j, h, b: (b, j))
        results = [of_k, of_k]
    of_tile = pl.BlockSpec((None, 1), lambda i, h, b: (b, i))
    return pl.pallas_call(
        functools.partial(kernel, size=size, scale=scale),
        name=name,
        grid=grid,
        in_specs=[of_q, of_k, of_k, of_q, of_row, of_row, of_query, of_query, of_key, of_tile, of_tile],
        out_specs=results,
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, _ in outputs],
        compiler_params=triton.CompilerParams(num_warps=size.warps, num_stages=size.stages),
        interpret=interpret,
    )(q, k, v, d_out, lse, slope, *seen, *bounds(meet))


def _row(i: Array, h: Array, b: Array) -> tuple:
    return b, 0


def _kernel_queries(
    q_ref, k_ref, v_ref, d_out_ref, lse_ref, slope_ref, positions_ref, segments_ref, key_segments_ref,
    first_ref, last_ref, dq_ref, *, size: Tiles, scale: float,
) -> None:  # fmt: skip
    q, d_out = q_ref[...], d_out_ref[...]
    lse, slope, positions, segments = lse_ref[...], slope_ref[...], positions_ref[...], segments_ref[...]

    def tile(j: Array, dq: Array) -> Array:
        keys = pl.ds(j * size.keys, size.keys)
        k, v = k_ref[keys, :], v_ref[keys, :]
        visible = sees(positions, segments, j * size.keys + jnp.arange(size.keys), key_segments_ref[keys])
        scores = contract(q, k, (1, 1)) * (scale * LOG2_E)
        weights = jnp.where(visible, jnp.exp2(scores - lse[:, None]), 0.0)
        d_scores = weights * (contract(d_out, v, (1, 1)) - slope[:, None])
        return dq + contract(d_scores.astype(k.dtype), k, (1, 0))

    dq = jax.lax.fori_loop(first_ref[0], last_ref[0] + 1, tile, jnp.zeros(q.shape, jnp.float32))
    dq_ref[...] = (dq * scale).astype(dq_ref.dtype)


def _kernel_keys(
    q_ref, k_ref, v_ref, d_out_ref, lse_ref, slope_ref, positions_ref, segments_ref, key_segments_ref,
    first_ref, last_ref, dk_ref, dv_ref, *, size: Tiles, scale: float,
) -> None:  # fmt: skip
    k, v, key_segments = k_ref[...], v_ref[...], key_segments_ref[...]
    places = pl.program_id(0) * size.keys + jnp.arange(size.keys)
    first = first_ref[0]
    count = last_ref[0] + 1 - first

    def tile(step: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        dk, dv = state
        r, i = step // jnp.maximum(count, 1), first + step % jnp.maximum(count, 1)
        rows = pl.ds(i * size.queries, size.queries)
        q, d_out = q_ref[rows, r, :], d_out_ref[rows, r, :]
        lse, slope = lse_ref[r, rows], slope_ref[r, rows]
        visible = sees(positions_ref[rows], segments_ref[rows], places, key_segments).T
        scores = contract(k, q, (1, 1)) * (scale * LOG2_E)
        weights = jnp.where(visible, jnp.exp2(scores - lse[None, :]), 0.0)
        dv = dv + contract(weights.astype(d_out.dtype), d_out, (1, 0))
        d_scores = weights * (contract(v, d_out, (1, 1)) - slope[None, :])
        return dk + contract(d_scores.astype(q.dtype), q, (1, 0)), dv

    zeros = jnp.zeros(k.shape, jnp.float32)
    dk, dv = jax.lax.fori_loop(0, count * size.ratio, tile, (zeros, zeros))
    dk_ref[...] = (dk * scale).astype(dk_ref.dtype)
    dv_ref[...] = dv.astype(dv_ref.dtype)
