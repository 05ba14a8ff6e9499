"""FlashAttention-2 for GPUs (Pallas with Triton): a program takes one tile of queries of one head, or one tile of keys.

Each loops over the tiles from the first to the last that it meets, so that nothing is read of other documents.
Scores are in units of log 2.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pallas_kernels.attention import gpu_backward
from pallas_kernels.attention.gpu_tiles import Tiles, bounds, filled, sees, tiles
from pallas_kernels.attention.reference import FLOOR
from pallas_kernels.attention.visibility import Visibility, padded, tiles_that_meet
from pallas_kernels.product import LOG2_E, contract


def forward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    seen: Visibility,
    scale: float,
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    """Out in q's dtype and the log-sum-exp."""
    B, T, H, D = q_BTHD.shape
    size = tiles("forward", q_BTHD, k_BSKD)
    q, k, v = filled(q_BTHD, size.rows), filled(k_BSKD, size.columns), filled(v_BSKD, size.columns)
    seen = padded(seen, size.rows, size.columns)
    first, last = bounds(tiles_that_meet(seen, size.queries, size.keys))
    n, R = size.queries, size.ratio
    of_q = pl.BlockSpec((None, n, None, D), lambda i, h, b: (b, i, h, 0))
    of_k = pl.BlockSpec((None, size.columns, None, D), lambda i, h, b: (b, 0, h // R, 0))
    of_row = pl.BlockSpec((None, n), lambda i, h, b: (b, i))
    of_tile = pl.BlockSpec((None, 1), lambda i, h, b: (b, i))
    out, lse = pl.pallas_call(
        functools.partial(_kernel, size=size, scale=scale * LOG2_E),
        name="attention_forward_kernel",
        grid=(size.rows // n, H, B),
        in_specs=[
            *(of_q, of_k, of_k, of_row, of_row),
            pl.BlockSpec((None, size.columns), lambda i, h, b: (b, 0)),
            *(of_tile, of_tile),
        ],
        out_specs=[of_q, pl.BlockSpec((None, None, n), lambda i, h, b: (b, h, i))],
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct((B, H, size.rows), jnp.float32)],
        compiler_params=triton.CompilerParams(num_warps=size.warps, num_stages=size.stages),
        interpret=interpret,
    )(q, k, v, *seen, first, last)
    return out[:, :T], lse.swapaxes(1, 2)[:, :T]


backward = gpu_backward.backward


def _kernel(
    q_ref, k_ref, v_ref, positions_ref, segments_ref, key_segments_ref, first_ref, last_ref, out_ref, lse_ref,
    *, size: Tiles, scale: float,
) -> None:  # fmt: skip
    q, positions, segments = q_ref[...], positions_ref[...], segments_ref[...]

    def absorb(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        values, top, total = state
        keys = pl.ds(j * size.keys, size.keys)
        k, v = k_ref[keys, :], v_ref[keys, :]
        places = j * size.keys + jnp.arange(size.keys)
        visible = sees(positions, segments, places, key_segments_ref[keys])
        scores = jnp.where(visible, contract(q, k, (1, 1)) * scale, -jnp.inf)
        now = jnp.maximum(top, scores.max(1))
        weights, kept = jnp.exp2(scores - now[:, None]), jnp.exp2(top - now)
        values = values * kept[:, None] + contract(weights.astype(v.dtype), v, (1, 0))
        return values, now, total * kept + weights.sum(1)

    nothing = jnp.zeros(size.queries, jnp.float32)
    start = (jnp.zeros(q.shape, jnp.float32), nothing + FLOOR, nothing)
    values, top, total = jax.lax.fori_loop(first_ref[0], last_ref[0] + 1, absorb, start)
    something = total > 0
    total = jnp.where(something, total, 1.0)
    out_ref[...] = (values / total[:, None]).astype(out_ref.dtype)
    lse_ref[...] = jnp.where(something, (top + jnp.log2(total)) / LOG2_E, FLOOR)
