"""The chunked scan forward for TPUs (Mosaic): one pass over a row, the state kept on chip from chunk to chunk.

A step of the grid takes one chunk of Q tokens of the R heads that share a group. All is transposed: tokens lie along
the lanes, so that x, y and the states of all heads are the rows of one matrix, (R P, Q) or (R P, N), and a factor of a
token is a row that broadcasts over them. dt and the prefix sums of log decays come as (R, Q) for the same reason.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.product import contract
from pallas_kernels.ssd import tpu_backward
from pallas_kernels.ssd.rows import Rows
from pallas_kernels.ssd.tpu_chunk import Interpret, Sizes, arrays, decays, input_specs, pairs, sizes


def forward(
    rows: Rows,
    initial_BHPN: Float[Array, "B H P N"],
    chunk: int,
    *,
    keep_states: bool,
    interpret: Interpret = False,
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"], Float[Array, "B G Z RP N"] | None]:
    """y, the last state, and the states before the chunks in x's dtype where they are to be kept."""
    s = sizes(rows, chunk)
    of_x = pl.BlockSpec((1, s.Q, s.R * s.P), lambda b, g, z: (b, z, g))
    of_state = pl.BlockSpec((1, 1, s.R * s.P, s.N), lambda b, g, z: (b, g, 0, 0))
    kept = pl.BlockSpec((1, 1, 1, s.R * s.P, s.N), lambda b, g, z: (b, g, z, 0, 0))
    x, *inputs = arrays(rows, s)
    results = pl.pallas_call(
        functools.partial(_kernel, s=s),
        name="ssd_forward_kernel",
        grid=(s.B, s.G, s.Z),
        in_specs=[of_x, *input_specs(s, lambda z: z), of_state],
        out_specs=[of_x, of_state, *[kept] * keep_states],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((s.B, s.G, s.R * s.P, s.N), jnp.float32),
            *[jax.ShapeDtypeStruct((s.B, s.G, s.Z, s.R * s.P, s.N), x.dtype)] * keep_states,
        ],
        scratch_shapes=[
            pltpu.VMEM((s.R * s.P, s.Q), jnp.float32),  # x
            pltpu.VMEM((s.R * s.P, s.Q), jnp.float32),  # y
            pltpu.VMEM((s.R * s.P, s.Q), x.dtype),  # x as it is added to the state
            pltpu.VMEM((4, s.R, s.Q), jnp.float32),  # factors of the tokens
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(x, *inputs, initial_BHPN.astype(jnp.float32).reshape(s.B, s.G, s.R * s.P, s.N))
    y, final = results[0].reshape(rows.x.shape), results[1].reshape(initial_BHPN.shape)
    return y, final, results[2] if keep_states else None


def _kernel(
    x_ref, dt_ref, coarse_ref, fine_ref, B_ref, C_ref, segments_ref, before_ref, initial_ref,
    y_ref, state_ref, *others, s: Sizes,
) -> None:  # fmt: skip
    *kept_ref, x, y, to_add, factors = others

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        state_ref[...] = initial_ref[...]  # this block of the result stays on chip for all chunks: it is the state

    dtype = x_ref.dtype
    B, C, state = B_ref[0], C_ref[0], state_ref[0, 0].astype(dtype)
    for ref in kept_ref:
        ref[0, 0, 0] = state
    decay = decays(coarse_ref[0, 0], fine_ref[0, 0], segments_ref[0], before_ref[0])
    dt, coarse_s = dt_ref[0, 0], coarse_ref[0, 0].T
    # By way of memory, from where a row comes to all sublanes for nothing.
    factors[0], factors[1], factors[2], factors[3] = dt * decay.source, decay.sink, decay.kept, dt * decay.to_end
    BC = contract(B, C, (1, 1))  # [s, l]
    y[...] = contract(state, C, (1, 1))
    x[...] = x_ref[0].T.astype(jnp.float32)
    for r in range(s.R):
        rows = slice(r * s.P, (r + 1) * s.P)
        source, sink, kept, to_end = (factors[i, r : r + 1] for i in range(4))
        weights = (BC * pairs(coarse_ref, coarse_s, decay.hidden, r)).astype(dtype)
        inside = contract((x[rows] * source).astype(dtype), weights, (1, 0))
        to_add[rows] = (x[rows] * to_end).astype(dtype)
        y[rows] = inside * sink + y[rows] * kept
    added = contract(to_add[...], B, (1, 0))
    for r in range(s.R):
        rows = slice(r * s.P, (r + 1) * s.P)
        state_ref[0, 0, rows] = state_ref[0, 0, rows] * factors[2, r : r + 1, s.Q - 1 :] + added[rows]
    y_ref[0] = y[...].astype(y_ref.dtype).T


backward = tpu_backward.backward
