"""The chunked scan backward for TPUs (Mosaic): one pass in reverse, the gradient of the state kept on chip.

The states before the chunks come from the forward pass, the rest is computed again. Layout as in the forward kernel.
With Xs = x dt source, W = BC pairs, dY = dy sink of one head, y = (Xs W) sink + (S C) kept and
S' = end S + (x dt to_end) B, the gradients below are those of products; that of a prefix sum c is, as the decay from s
to l is exp(c_l - c_s), the sum over pairs that end in a token minus that over pairs that start in it.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.product import LOG2_E, contract
from pallas_kernels.ssd.decay import Prefix
from pallas_kernels.ssd.rows import Rows
from pallas_kernels.ssd.tpu_chunk import Interpret, Sizes, arrays, decays, input_specs, pairs, sizes

LANES = 128


def backward(
    rows: Rows,
    states: Float[Array, "B G Z RP N"],
    dy_BTHP: Float[Array, "B T H P"],
    dfinal_BHPN: Float[Array, "B H P N"],
    chunk: int,
    *,
    interpret: Interpret = False,
) -> tuple[Rows, Float[Array, "B H P N"]]:
    """Gradients of the rows, of which the coarse parts and the segments have none, and of the initial state."""
    s = sizes(rows, chunk)

    def back(z: Array) -> Array:
        return s.Z - 1 - z

    of_x = pl.BlockSpec((1, s.Q, s.R * s.P), lambda b, g, z: (b, back(z), g))
    of_state = pl.BlockSpec((1, 1, s.R * s.P, s.N), lambda b, g, z: (b, g, 0, 0))
    before = pl.BlockSpec((1, 1, 1, s.R * s.P, s.N), lambda b, g, z: (b, g, back(z), 0, 0))
    x, *inputs = arrays(rows, s)
    specs = input_specs(s, back)
    of_heads, of_group = specs[0], specs[3]
    float32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    heads = float32((s.B, s.G, s.R, s.Z * s.Q))
    matrix = (s.R * s.P, s.Q)
    dx, ddt, dsums, dB, dC, dstate = pl.pallas_call(
        functools.partial(_kernel, s=s),
        name="ssd_backward_kernel",
        grid=(s.B, s.G, s.Z),
        in_specs=[of_x, *specs, before, of_x, of_state],
        out_specs=[of_x, of_heads, of_heads, of_group, of_group, of_state],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            *(heads, heads),
            *[jax.ShapeDtypeStruct(inputs[3].shape, x.dtype)] * 2,
            float32((s.B, s.G, s.R * s.P, s.N)),
        ],
        scratch_shapes=[
            *[pltpu.VMEM(matrix, jnp.float32)] * 4,  # x, dy, S C, gradient of x as it is added to the state
            *[pltpu.VMEM(matrix, x.dtype)] * 2,  # x and dy, each with its factor
            pltpu.VMEM((s.Q, s.R * s.P), x.dtype),  # the first of them, tokens in rows
            pltpu.VMEM((s.Q, LANES), jnp.float32),  # sums over the pairs that start in a token, a head a lane
            pltpu.VMEM((6, s.R, s.Q), jnp.float32),  # factors of the tokens
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(x, *inputs, states, dy_BTHP.reshape(x.shape), dfinal_BHPN.reshape(s.B, s.G, s.R * s.P, s.N))
    ddt, dsums = (a.reshape(s.B, s.G * s.R, -1) for a in (ddt, dsums))
    prefix = Prefix(jnp.zeros_like(dsums), dsums / LOG2_E)
    of_rows = (dx.reshape(rows.x.shape), ddt.swapaxes(1, 2), prefix, dB.reshape(rows.B.shape), dC.reshape(rows.C.shape))
    return Rows(*of_rows, None, None), dstate.reshape(dfinal_BHPN.shape)


def _kernel(
    x_ref, dt_ref, coarse_ref, fine_ref, B_ref, C_ref, segments_ref, before_ref, state_ref, dy_ref, dfinal_ref,
    dx_ref, ddt_ref, dsums_ref, dB_ref, dC_ref, dstate_ref,
    x, dy, SC, dadded, scaled_x, scaled_dy, x_tokens, starts, factors, *, s: Sizes,
) -> None:  # fmt: skip
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        dstate_ref[...] = dfinal_ref[...]

    dtype, P = x_ref.dtype, s.P
    B, C, state = B_ref[0], C_ref[0], state_ref[0, 0, 0]
    dstate = dstate_ref[0, 0].astype(dtype)
    decay = decays(coarse_ref[0, 0], fine_ref[0, 0], segments_ref[0], before_ref[0])
    dt, coarse_s = dt_ref[0, 0], coarse_ref[0, 0].T
    for i, factor in enumerate((decay.source, decay.to_end, decay.sink, decay.kept, dt * decay.source, dt)):
        factors[i] = factor
    x[...], dy[...] = x_ref[0].T.astype(jnp.float32), dy_ref[0].T.astype(jnp.float32)
    heads = [(r, slice(r, r + 1), slice(r * P, (r + 1) * P)) for r in range(s.R)]
    for r, _, rows in heads:
        scaled_x[rows] = (x[rows] * factors[4, r : r + 1]).astype(dtype)
        scaled_dy[rows] = (dy[rows] * factors[2, r : r + 1]).astype(dtype)
    x_tokens[...] = scaled_x[...].T
    BC = contract(B, C, (1, 1))  # [s, l]
    SC[...] = contract(state, C, (1, 1))
    dadded[...] = contract(dstate, B, (1, 1))
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (s.Q, s.Q), axis) for axis in (0, 1))
    last = jax.lax.broadcasted_iota(jnp.int32, (1, s.Q), 1) == s.Q - 1
    dBC = jnp.zeros((s.Q, s.Q), jnp.float32)
    for r, one, rows in heads:
        source, to_end, _, kept, _, dt = (factors[i, one] for i in range(6))
        decay_r = pairs(coarse_ref, coarse_s, decay.hidden, r)
        weights = BC * decay_r
        dweights = _of_head(x_tokens, scaled_dy, r, P)
        dBC = dBC + dweights * decay_r
        # Without the pairs of a token with itself, whose decay is 1: they would cancel only up to rounding.
        dpairs = jnp.where(row < column, dweights * weights, 0.0)
        dscaled = contract(scaled_dy[rows], weights.astype(dtype), (1, 1))
        dX = dscaled * source + dadded[rows] * to_end
        dx_rows = dX * dt
        ddt_ref[0, 0, one] = (dX * x[rows]).sum(0, keepdims=True)
        starts[:, one] = dpairs.sum(1, keepdims=True)
        at_end = jnp.where(last, 0.0, (x[rows] * dadded[rows]).sum(0, keepdims=True) * dt * to_end)
        of_state = (dy[rows] * SC[rows]).sum(0, keepdims=True) * kept
        end = (dstate_ref[0, 0, rows] * state_ref[0, 0, 0, rows].astype(jnp.float32)).sum(0, keepdims=True)
        end = end.sum(1, keepdims=True) * kept[:, s.Q - 1 :] + at_end.sum(1, keepdims=True)
        dsums_ref[0, 0, one] = dpairs.sum(0, keepdims=True) + of_state - at_end + jnp.where(last, end, 0.0)
        # From here on x holds what the state was given, dy what it gave, and S C the gradient of x.
        x[rows] = x[rows] * (dt * to_end)
        dy[rows] = dy[rows] * kept
        SC[rows] = dx_rows
    dsums_ref[0, 0] -= starts[...].T[: s.R]
    given, gave = x[...].astype(dtype), dy[...].astype(dtype)
    dBC = dBC.astype(dtype)
    dB_ref[0] = (contract(dBC, C, (1, 0)) + contract(given, dstate, (0, 0))).astype(dB_ref.dtype)
    dC_ref[0] = (contract(dBC, B, (0, 0)) + contract(gave, state, (0, 0))).astype(dC_ref.dtype)
    into = contract(gave, C, (1, 0))
    for r, _, rows in heads:
        dstate_ref[0, 0, rows] = dstate_ref[0, 0, rows] * factors[3, r : r + 1, s.Q - 1 :] + into[rows]
    dx_ref[0] = SC[...].astype(dx_ref.dtype).T


def _of_head(x_tokens, scaled_dy, r: int, P: int) -> Array:
    """x^T dy of head r, [s, l]. Lanes are sliced at multiples of 128: heads that share one meet zeros there."""
    together = max(1, LANES // P)
    first = r // together * together
    parts = [scaled_dy[i * P : (i + 1) * P] for i in range(first, first + together)]
    parts = [part if first + i == r else jnp.zeros_like(part) for i, part in enumerate(parts)]
    return contract(x_tokens[:, first * P : (first + together) * P], jnp.concatenate(parts), (1, 0))
