"""The chunked scan for GPUs (Pallas with Triton): a program takes one head of one row and keeps its state in registers.

Tokens are in rows. The backward kernel goes through the chunks in reverse, with the states before them from the forward
pass; its formulas are those of the TPU kernel. Gradients of B and C come a head and are summed over a group outside.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pallas_kernels.product import contract
from pallas_kernels.ssd import gpu_backward
from pallas_kernels.ssd.gpu_chunk import arrays, decays, specs
from pallas_kernels.ssd.rows import Rows


def forward(
    rows: Rows, initial_BHPN: Float[Array, "B H P N"], chunk: int, *, keep_states: bool, interpret: bool = False
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"], Float[Array, "B H Z P N"] | None]:
    """y, the last state, and the states before the chunks in x's dtype where they are to be kept."""
    B, T, H, P = rows.x.shape
    N, Z = rows.B.shape[3], T // chunk
    of_state = pl.BlockSpec((None, None, P, N), lambda h, b: (b, h, 0, 0))
    kept = pl.BlockSpec((None, None, Z, P, N), lambda h, b: (b, h, 0, 0, 0))
    inputs = specs(rows, chunk)
    results = pl.pallas_call(
        functools.partial(_kernel, chunk=chunk, chunks=Z),
        name="ssd_forward_kernel",
        grid=(H, B),
        in_specs=[*inputs, of_state],
        out_specs=[inputs[0], of_state, *[kept] * keep_states],
        out_shape=[
            jax.ShapeDtypeStruct(rows.x.shape, rows.x.dtype),
            jax.ShapeDtypeStruct(initial_BHPN.shape, jnp.float32),
            *[jax.ShapeDtypeStruct((B, H, Z, P, N), rows.x.dtype)] * keep_states,
        ],
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=1),
        interpret=interpret,
    )(*arrays(rows, chunk), initial_BHPN.astype(jnp.float32))
    return results[0], results[1], results[2] if keep_states else None


backward = gpu_backward.backward


def _kernel(
    x_ref, dt_ref, coarse_ref, fine_ref, B_ref, C_ref, segments_ref, before_ref, initial_ref,
    y_ref, state_ref, *kept_ref, chunk: int, chunks: int,
) -> None:  # fmt: skip
    dtype = x_ref.dtype

    def step(z: Array, state: Array) -> Array:
        tokens = pl.ds(z * chunk, chunk)
        for ref in kept_ref:
            ref[z] = state.astype(dtype)
        x, dt, B, C = x_ref[tokens, :].astype(jnp.float32), dt_ref[tokens], B_ref[tokens, :], C_ref[tokens, :]
        decay = decays(coarse_ref, fine_ref, segments_ref, before_ref, z, chunk)
        weights = (contract(C, B, (1, 1)) * decay.pairs).astype(dtype)
        X = x * dt[:, None]
        inside = contract(weights, X.astype(dtype), (1, 0))
        carried = contract(C, state.astype(dtype), (1, 1))
        y_ref[tokens, :] = (inside + carried * decay.kept[:, None]).astype(y_ref.dtype)
        return state * decay.end + contract((X * decay.to_end[:, None]).astype(dtype), B, (0, 0))

    state_ref[...] = jax.lax.fori_loop(0, chunks, step, initial_ref[...])
