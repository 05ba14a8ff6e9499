"""The chunked scan backward for GPUs (Pallas with Triton): one pass in reverse, the state's gradient in registers."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pallas_kernels.product import LOG2_E, contract
from pallas_kernels.ssd.decay import Prefix
from pallas_kernels.ssd.gpu_chunk import arrays, decays, specs
from pallas_kernels.ssd.rows import Rows


def backward(
    rows: Rows,
    states: Float[Array, "B H Z P N"],
    dy_BTHP: Float[Array, "B T H P"],
    dfinal_BHPN: Float[Array, "B H P N"],
    chunk: int,
    *,
    interpret: bool = False,
) -> tuple[Rows, Float[Array, "B H P N"]]:
    """Gradients of the rows, of which the coarse parts and the segments have none, and of the initial state."""
    B, T, H, P = rows.x.shape
    G, N = rows.B.shape[2:]
    Z = T // chunk
    of_state = pl.BlockSpec((None, None, P, N), lambda h, b: (b, h, 0, 0))
    before = pl.BlockSpec((None, None, Z, P, N), lambda h, b: (b, h, 0, 0, 0))
    of_head = pl.BlockSpec((None, T, None, N), lambda h, b: (b, 0, h, 0))
    inputs = specs(rows, chunk)
    float32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    dx, ddt, dsums, dB, dC, dstate = pl.pallas_call(
        functools.partial(_kernel, chunk=chunk, chunks=Z),
        name="ssd_backward_kernel",
        grid=(H, B),
        in_specs=[*inputs, before, inputs[0], of_state],
        out_specs=[inputs[0], inputs[1], inputs[1], of_head, of_head, of_state],
        out_shape=[
            jax.ShapeDtypeStruct(rows.x.shape, rows.x.dtype),
            *(float32((B, H, T)), float32((B, H, T))),
            *(float32((B, T, H, N)), float32((B, T, H, N))),
            float32((B, H, P, N)),
        ],
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
    )(*arrays(rows, chunk), states, dy_BTHP, dfinal_BHPN)
    dB, dC = (a.reshape(B, T, G, H // G, N).sum(3).astype(rows.B.dtype) for a in (dB, dC))
    prefix = Prefix(jnp.zeros_like(dsums), dsums / LOG2_E)
    return Rows(dx, ddt.swapaxes(1, 2), prefix, dB, dC, None, None), dstate


def _kernel(
    x_ref, dt_ref, coarse_ref, fine_ref, B_ref, C_ref, segments_ref, before_ref, states_ref, dy_ref, dfinal_ref,
    dx_ref, ddt_ref, dsums_ref, dB_ref, dC_ref, dinitial_ref, *, chunk: int, chunks: int,
) -> None:  # fmt: skip
    dtype = x_ref.dtype
    places = jnp.arange(chunk)

    def step(turn: Array, dstate: Array) -> Array:
        z = chunks - 1 - turn
        tokens = pl.ds(z * chunk, chunk)
        x, dy = x_ref[tokens, :].astype(jnp.float32), dy_ref[tokens, :].astype(jnp.float32)
        dt, B, C, state = dt_ref[tokens], B_ref[tokens, :], C_ref[tokens, :], states_ref[z]
        decay = decays(coarse_ref, fine_ref, segments_ref, before_ref, z, chunk)
        X, into = (x * dt[:, None]).astype(dtype), dstate.astype(dtype)

        CB = contract(C, B, (1, 1))
        dweights = contract(dy.astype(dtype), X, (1, 1))
        dCB = (dweights * decay.pairs).astype(dtype)
        weights = CB * decay.pairs
        # Without the pairs of a token with itself, whose decay is 1: they would cancel only up to rounding.
        dpairs = jnp.where(places[None, :] < places[:, None], dweights * weights, 0.0)

        given, gave = (x * (dt * decay.to_end)[:, None]).astype(dtype), (dy * decay.kept[:, None]).astype(dtype)
        dadded = contract(B, into, (1, 1))
        dX = contract(weights.astype(dtype), dy.astype(dtype), (0, 0)) + dadded * decay.to_end[:, None]
        dx_ref[tokens, :] = (dX * dt[:, None]).astype(dx_ref.dtype)
        ddt_ref[tokens] = (dX * x).sum(1)
        dB_ref[tokens, :] = contract(dCB, C, (0, 0)) + contract(given, into, (1, 0))
        dC_ref[tokens, :] = contract(dCB, B, (1, 0)) + contract(gave, state, (1, 0))

        at_end = jnp.where(places == chunk - 1, 0.0, (x * dadded).sum(1) * dt * decay.to_end)
        of_state = (dy * contract(C, state, (1, 1))).sum(1) * decay.kept
        end = (dstate * state.astype(jnp.float32)).sum() * decay.end + at_end.sum()
        sums = dpairs.sum(1) - dpairs.sum(0) + of_state - at_end
        dsums_ref[tokens] = sums + jnp.where(places == chunk - 1, end, 0.0)
        return dstate * decay.end + contract(gave, C, (0, 0))

    dinitial_ref[...] = jax.lax.fori_loop(0, chunks, step, dfinal_ref[...])
