"""FlashAttention-2 forward for TPUs (Mosaic).

A step of the grid takes one tile of keys to one tile of queries of all R heads that read them. The heads' queries are
stacked in rows, some heads a turn, so that keys stay in the matrix unit; a turn's scores go through memory, which has
room where registers have not. The mask is the same for all heads and is made once a step. Scores are in units of log 2.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.attention import tpu_backward
from pallas_kernels.attention.reference import FLOOR
from pallas_kernels.attention.tiles import LANES, Tiles, columns_of, edges, padded_rows, spec, tiles
from pallas_kernels.attention.visibility import Visibility, padded, tiles_that_meet
from pallas_kernels.attention.work import work
from pallas_kernels.product import LOG2_E, contract


def forward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    seen: Visibility,
    scale: float,
    *,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    """Out in q's dtype and the log-sum-exp. One token a row is turned so that its heads are the tokens."""
    B, T, H, D = q_BTHD.shape
    K = k_BSKD.shape[2]
    if T == 1 and K < H:
        q, seen = _heads_as_tokens(q_BTHD, K, seen)
        out, lse = forward(q, k_BSKD, v_BSKD, seen, scale, interpret=interpret)
        return out.swapaxes(1, 2).reshape(B, 1, H, D), lse.swapaxes(1, 2).reshape(B, 1, H)
    size = tiles("forward", q_BTHD, k_BSKD)
    q, k, v = padded_rows(size, q_BTHD, k_BSKD, v_BSKD)
    out, lse = _call(size, q, k, v, padded(seen, size.rows, size.columns), scale, interpret)
    out = out.reshape(B, -1, H, D)[:, :T]
    return out, lse.transpose(0, 2, 1, 3).reshape(B, -1, H)[:, :T]


backward = tpu_backward.backward


def _heads_as_tokens(q: Array, K: int, seen: Visibility) -> tuple[Array, Visibility]:
    B, _, H, D = q.shape
    R = H // K
    positions, segments = (jnp.broadcast_to(a, (B, R)) for a in seen[:2])
    return q.reshape(B, K, R, D).swapaxes(1, 2), Visibility(positions, segments, seen.key_segments)


def _call(
    size: Tiles, q: Array, k: Array, v: Array, seen: Visibility, scale: float, interpret: bool | pltpu.InterpretParams
) -> tuple[Array, Array]:
    B, T, K, R, D, n = size.batch, size.rows, size.kv_heads, size.ratio, size.width, size.queries
    todo = work(tiles_that_meet(seen, n, size.keys))
    queries = jnp.stack([seen.query_positions, seen.query_segments], axis=-1)

    block = functools.partial(spec, size, transposed=False)
    of_q, of_k = block((1, n, R * D), "bih"), block((1, size.keys, D), "bjh")
    return pl.pallas_call(
        functools.partial(_kernel, size=size, scale=scale * LOG2_E),
        name="attention_forward_kernel",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(K, todo.steps),
            in_specs=[of_q, of_k, of_k, block((1, n, 2), "bi0"), block((1, 1, size.keys), "b0j")],
            out_specs=[of_q, block((1, 1, n, R), "bhi0")],
            scratch_shapes=[
                pltpu.VMEM((R * n, D), jnp.float32),  # sum of weights times values
                pltpu.VMEM((R * n, LANES), jnp.float32),  # the largest score, in every lane
                pltpu.VMEM((R * n, LANES), jnp.float32),  # sum of weights, over the lanes
                pltpu.VMEM((n, size.keys), jnp.float32),  # 0 where a query sees a key, else -inf
                pltpu.VMEM((2, size.heads * n, size.keys), jnp.float32),  # scores of two turns
                pltpu.VMEM((R * n, D), q.dtype),  # q, the heads in rows
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((B, T, K * R * D), q.dtype),
            jax.ShapeDtypeStruct((B, K, T, R), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(todo.pairs, q, k, v, queries, seen.key_segments[:, None, :])


def _kernel(
    pairs,
    q_ref,
    k_ref,
    v_ref,
    queries_ref,
    segments_ref,
    out_ref,
    lse_ref,
    values,
    top,
    total,
    hidden,
    scores,
    stacked,
    *,
    size: Tiles,
    scale,
) -> None:
    n, D = size.queries, size.width
    first, last, column = edges(pairs, size.columns // size.keys)

    @pl.when(first)
    def _() -> None:
        values[...] = jnp.zeros_like(values)
        top[...] = jnp.full_like(top, FLOOR)
        total[...] = jnp.zeros_like(total)
        for r in range(size.ratio):
            stacked[r * n : (r + 1) * n] = q_ref[0, :, r * D : (r + 1) * D]

    places = column * size.keys + jax.lax.broadcasted_iota(jnp.int32, (n, size.keys), 1)
    segments = queries_ref[0, :, 1:2]
    sees = (places <= queries_ref[0, :, 0:1]) & (segments_ref[0] == segments) & (segments > 0)
    hidden[...] = jnp.where(sees, 0.0, -jnp.inf)

    @pl.loop(0, size.ratio // size.heads)
    def _(turn: Array) -> None:
        rows = pl.ds(pl.multiple_of(turn * (size.heads * n), size.heads * n), size.heads * n)
        q = stacked[rows]
        held = scores.at[jax.lax.rem(turn, 2)]
        before = top[rows]
        largest = before
        for columns in columns_of(size):
            mask = jnp.concatenate([hidden[:, columns]] * size.heads)
            part = contract(q, k_ref[0, columns], (1, 1)) * scale + mask
            held[:, columns] = part
            largest = functools.reduce(jnp.maximum, _lanes(part), largest)
        now = jnp.broadcast_to(largest.max(1, keepdims=True), before.shape)
        kept = jnp.exp2(before - now)
        weight = total[rows] * kept
        sums = values[rows] * kept
        for columns in columns_of(size):
            weights = jnp.exp2(held[:, columns] - now[:, :1])
            weight = functools.reduce(jnp.add, _lanes(weights), weight)
            sums = sums + contract(weights.astype(v_ref.dtype), v_ref[0, columns], (1, 0))
        top[rows], total[rows], values[rows] = now, weight, sums

    @pl.when(last)
    def _() -> None:
        lane = jax.lax.broadcasted_iota(jnp.int32, (n, LANES), 1)
        lse = jnp.zeros((n, LANES), jnp.float32)
        for r in range(size.ratio):
            rows = slice(r * n, (r + 1) * n)
            weight = total[rows].sum(1, keepdims=True)
            something = weight > 0
            weight = jnp.where(something, weight, 1.0)
            out_ref[0, :, r * D : (r + 1) * D] = (values[rows] / weight).astype(out_ref.dtype)
            natural = jnp.where(something, (top[rows] + jnp.log2(weight)) / LOG2_E, FLOOR)
            lse = jnp.where(lane == r, natural, lse)
        lse_ref[0, 0] = lse[:, : size.ratio]


def _lanes(a: Array) -> list[Array]:
    return [a[:, at : at + LANES] for at in range(0, a.shape[1], LANES)]
