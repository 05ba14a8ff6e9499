"""FlashAttention-2 backward for TPUs (Mosaic): one kernel for dq, one for dk and dv.

Both compute the scores again and know their log-sum-exp, so that every tile stands for itself. In the kernel of dk and
dv the scores are transposed: keys are the rows, and what is of a query lies along the lanes.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.attention.tiles import Tiles, columns_of, edges, padded_rows, spec, tiles
from pallas_kernels.attention.visibility import Visibility, padded, tiles_that_meet
from pallas_kernels.attention.work import work
from pallas_kernels.product import LOG2_E, contract

Interpret = bool | pltpu.InterpretParams


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
    interpret: Interpret = False,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B S K D"], Float[Array, "B S K D"]]:
    """dq, dk and dv, in dtype."""
    B, T, H, D = q_BTHD.shape
    S, K = k_BSKD.shape[1:3]
    of_queries = jnp.stack([lse_BTH * LOG2_E, slope_BTH]).reshape(2, B, T, K, H // K)

    size = tiles("queries", q_BTHD, k_BSKD)
    arrays = padded_rows(size, q_BTHD, k_BSKD, v_BSKD, d_out_BTHD)
    statistics = _filled(of_queries.transpose(0, 1, 3, 2, 4), 3, size.rows)  # (2, B, K, T, R)
    visible = padded(seen, size.rows, size.columns)
    dq = _call_queries(size, arrays, statistics, visible, scale, dtype, interpret)

    size = tiles("keys", q_BTHD, k_BSKD)
    arrays = padded_rows(size, q_BTHD, k_BSKD, v_BSKD, d_out_BTHD)
    statistics = _filled(of_queries.transpose(0, 1, 3, 4, 2), 4, size.rows)  # (2, B, K, R, T)
    visible = padded(seen, size.rows, size.columns)
    dk, dv = _call_keys(size, arrays, statistics, visible, scale, dtype, interpret)
    return dq.reshape(B, -1, H, D)[:, :T], *(a.reshape(B, -1, K, D)[:, :S] for a in (dk, dv))


def _filled(a: Array, axis: int, length: int) -> Array:
    pads = [(0, 0)] * a.ndim
    pads[axis] = (0, length - a.shape[axis])
    return jnp.pad(a, pads)


def _call_queries(
    size: Tiles,
    arrays: tuple,
    statistics: Array,
    seen: Visibility,
    scale: float,
    dtype: jnp.dtype,
    interpret: Interpret,
) -> Array:
    n, R, D = size.queries, size.ratio, size.width
    todo = work(tiles_that_meet(seen, n, size.keys))
    queries = jnp.stack([seen.query_positions, seen.query_segments], axis=-1)
    block = functools.partial(spec, size, transposed=False)
    of_q, of_k = block((1, n, R * D), "bih"), block((1, size.keys, D), "bjh")
    of_rows = block((1, 1, n, R), "bhi0")
    return pl.pallas_call(
        functools.partial(_kernel_queries, size=size, scale=scale),
        name="attention_dq_kernel",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(size.kv_heads, todo.steps),
            in_specs=[
                *(of_q, of_k, of_k, of_q, of_rows, of_rows),
                *(block((1, n, 2), "bi0"), block((1, 1, size.keys), "b0j")),
            ],
            out_specs=of_q,
            scratch_shapes=[
                pltpu.VMEM((R * n, D), arrays[0].dtype),  # q, the heads in rows
                pltpu.VMEM((R * n, D), arrays[0].dtype),  # d_out, likewise
                pltpu.VMEM((R * n, 1), jnp.float32),  # log-sum-exp, likewise
                pltpu.VMEM((R * n, 1), jnp.float32),  # slope, likewise
                pltpu.VMEM((R * n, D), jnp.float32),  # dq
                pltpu.VMEM((n, size.keys), jnp.float32),  # 0 where a query sees a key, else -inf
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((size.batch, size.rows, size.kv_heads * R * D), dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(todo.pairs, *arrays, *statistics, queries, seen.key_segments[:, None, :])


def _kernel_queries(
    pairs, q_ref, k_ref, v_ref, d_out_ref, lse_ref, slope_ref, queries_ref, segments_ref, dq_ref,
    q_rows, d_out_rows, lse_rows, slope_rows, dq, hidden, *, size: Tiles, scale: float,
) -> None:  # fmt: skip
    n, D = size.queries, size.width
    first, last, column = edges(pairs, size.columns // size.keys)
    heads = [(r, slice(r * n, (r + 1) * n), slice(r * D, (r + 1) * D)) for r in range(size.ratio)]

    @pl.when(first)
    def _() -> None:
        dq[...] = jnp.zeros_like(dq)
        for r, rows, lanes in heads:
            q_rows[rows], d_out_rows[rows] = q_ref[0, :, lanes], d_out_ref[0, :, lanes]
            lse_rows[rows], slope_rows[rows] = lse_ref[0, 0, :, r : r + 1], slope_ref[0, 0, :, r : r + 1]

    places = column * size.keys + jax.lax.broadcasted_iota(jnp.int32, hidden.shape, 1)
    segments = queries_ref[0, :, 1:2]
    sees = (places <= queries_ref[0, :, 0:1]) & (segments_ref[0] == segments) & (segments > 0)
    hidden[...] = jnp.where(sees, 0.0, -jnp.inf)

    @pl.loop(0, size.ratio // size.heads)
    def _(turn: Array) -> None:
        rows = pl.ds(pl.multiple_of(turn * (size.heads * n), size.heads * n), size.heads * n)
        q, d_out, lse, slope = q_rows[rows], d_out_rows[rows], lse_rows[rows], slope_rows[rows]
        total = dq[rows]
        for columns in columns_of(size):
            k, v = k_ref[0, columns], v_ref[0, columns]
            mask = jnp.concatenate([hidden[:, columns]] * size.heads)
            weights = jnp.exp2(contract(q, k, (1, 1)) * (scale * LOG2_E) + mask - lse)
            d_scores = weights * (contract(d_out, v, (1, 1)) - slope)
            total = total + contract(d_scores.astype(k.dtype), k, (1, 0))
        dq[rows] = total

    @pl.when(last)
    def _() -> None:
        for _r, rows, lanes in heads:
            dq_ref[0, :, lanes] = (dq[rows] * scale).astype(dq_ref.dtype)


def _call_keys(
    size: Tiles,
    arrays: tuple,
    statistics: Array,
    seen: Visibility,
    scale: float,
    dtype: jnp.dtype,
    interpret: Interpret,
) -> tuple[Array, Array]:
    n, R, D = size.queries, size.ratio, size.width
    todo = work(tiles_that_meet(seen, n, size.keys).swapaxes(1, 2))
    queries = jnp.stack([seen.query_positions, seen.query_segments], axis=1)
    block = functools.partial(spec, size, transposed=True)
    of_q, of_k = block((1, n, R * D), "bih"), block((1, size.keys, D), "bjh")
    of_rows = block((1, 1, R, n), "bh0i")
    return pl.pallas_call(
        functools.partial(_kernel_keys, size=size, scale=scale),
        name="attention_dkv_kernel",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(size.kv_heads, todo.steps),
            in_specs=[
                *(of_q, of_k, of_k, of_q, of_rows, of_rows),
                *(block((1, 2, n), "b0i"), block((1, size.keys, 1), "bj0")),
            ],
            out_specs=[of_k, of_k],
            scratch_shapes=[
                pltpu.VMEM((size.keys, D), jnp.float32),  # dk
                pltpu.VMEM((size.keys, D), jnp.float32),  # dv
                pltpu.VMEM((size.keys, n), jnp.float32),  # 0 where a query sees a key, else -inf
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct((size.batch, size.columns, size.kv_heads * D), dtype)] * 2,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(todo.pairs, *arrays, *statistics, queries, seen.key_segments[:, :, None])


def _kernel_keys(
    pairs, q_ref, k_ref, v_ref, d_out_ref, lse_ref, slope_ref, queries_ref, segments_ref, dk_ref, dv_ref,
    dk, dv, hidden, *, size: Tiles, scale: float,
) -> None:  # fmt: skip
    D = size.width
    first, last, _ = edges(pairs, size.rows // size.queries)
    column = jax.lax.div(pairs[pl.program_id(1)], size.rows // size.queries)
    column = jax.lax.rem(column, size.columns // size.keys)

    @pl.when(first)
    def _() -> None:
        dk[...] = jnp.zeros_like(dk)
        dv[...] = jnp.zeros_like(dv)

    places = column * size.keys + jax.lax.broadcasted_iota(jnp.int32, hidden.shape, 0)
    segments = queries_ref[0, 1:2]
    sees = (places <= queries_ref[0, 0:1]) & (segments_ref[0] == segments) & (segments > 0)
    hidden[...] = jnp.where(sees, 0.0, -jnp.inf)

    for r in range(size.ratio):
        lanes = slice(r * D, (r + 1) * D)
        q, d_out = q_ref[0, :, lanes], d_out_ref[0, :, lanes]
        lse, slope = lse_ref[0, 0, r : r + 1], slope_ref[0, 0, r : r + 1]
        for keys in columns_of(size):
            k, v = k_ref[0, keys], v_ref[0, keys]
            weights = jnp.exp2(contract(k, q, (1, 1)) * (scale * LOG2_E) + hidden[keys] - lse)
            dv[keys] += contract(weights.astype(d_out.dtype), d_out, (1, 0))
            d_scores = weights * (contract(v, d_out, (1, 1)) - slope)
            dk[keys] += contract(d_scores.astype(q.dtype), q, (1, 0))

    @pl.when(last)
    def _() -> None:
        dk_ref[0] = (dk[...] * scale).astype(dk_ref.dtype)
        dv_ref[0] = dv[...].astype(dv_ref.dtype)
