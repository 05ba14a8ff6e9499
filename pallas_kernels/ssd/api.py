"""The public functions of the scan; what is given is checked here, and nowhere below."""

import functools
import importlib
from types import ModuleType

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Implementation, choose, wrong_platform
from pallas_kernels.product import product
from pallas_kernels.ssd import reference, xla
from pallas_kernels.ssd.rows import Rows, prepare


def ssd(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    *,
    chunk: int,
    initial_state: Float[Array, "B H P N"] | None = None,
    before_segment: Int[Array, " B"] | None = None,
    implementation: Implementation | None = None,
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"], Float[Array, "B H"]]:
    """S_t = exp(dt A) S_(t-1) + dt x B^T and y = S C, with S = 0 before each segment (Dao and Gu 2024, 2405.21060).

    Returns y in x's dtype, the state after the last token and how much of the state before the row is left in it,
    both float32: (0, 1], and 0 where the row leaves the segment it begins in. dt >= 0 and A <= 0 are float32; dt = 0
    leaves the state as it was. Head h reads group h // (H / G). Matrices are multiplied in x's dtype with float32
    sums. `chunk` tokens are done at once, and the result does not depend on it.

    initial_state: before the row, of segment before_segment; by default 0, and the segment of the first token.
    Context parallelism starts each shard from 0, joins (state, left) of all, and adds `ssd_carried`.
    ValueError for shapes that do not fit.
    """
    batch, T, H, P = x_BTHP.shape
    G, N = B_BTGN.shape[2:]
    shapes = (dt_BTH.shape, A_H.shape, B_BTGN.shape, C_BTGN.shape, segments_BT.shape)
    if shapes != ((batch, T, H), (H,), (batch, T, G, N), (batch, T, G, N), (batch, T)) or H % G:
        raise ValueError(
            f"ssd: x {x_BTHP.shape}, dt {shapes[0]}, A {shapes[1]}, B {shapes[2]}, C {shapes[3]}, segments {shapes[4]} "
            "are not (B, T, H, P), (B, T, H), (H,), twice (B, T, G, N) and (B, T) with H a multiple of G"
        )
    initial = jnp.zeros((batch, H, P, N), jnp.float32) if initial_state is None else initial_state
    before = segments_BT[:, 0] if before_segment is None else before_segment
    name = _choose(x_BTHP, G, N, chunk, implementation)
    if name == "reference":
        y, final = reference.forward(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, segments_BT, before, initial)
    else:
        most = {"xla": -(-T // 8) * 8, "pallas_gpu": 64}  # no longer than the row; what registers hold
        chunk = min(chunk, most.get(name, chunk))
        B, C = B_BTGN.astype(x_BTHP.dtype), C_BTGN.astype(x_BTHP.dtype)
        rows = prepare(x_BTHP, dt_BTH, A_H, B, C, segments_BT, before, chunk=chunk)
        run = xla.forward if name == "xla" else functools.partial(_ssd, name)
        y, final = run(rows, initial, chunk)
    stays = (segments_BT == before[:, None]).all(1)
    left = jnp.where(stays[:, None], jnp.exp((dt_BTH * A_H).sum(1)), 0.0)
    return y[:, :T], final, left


def ssd_carried(
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    state_BHPN: Float[Array, "B H P N"],
    before_segment: Int[Array, " B"],
) -> Float[Array, "B T H P"]:
    """What a state before the row adds to y, float32: nothing after the first token of another segment.

    The scan is linear in its initial state: y of `ssd` from a state = y from 0 + this.
    """
    batch, T, G, N = C_BTGN.shape
    H, P = state_BHPN.shape[1:3]
    stays = jax.lax.cummin((segments_BT == before_segment[:, None]).astype(jnp.int32), axis=1) > 0
    # A plain prefix sum: where its rounding is more than 1e-6, nothing is left of the state.
    kept = jnp.where(stays[:, :, None], jnp.exp(jnp.cumsum(dt_BTH * A_H, axis=1)), 0.0)
    state = state_BHPN.reshape(batch, G, H // G, P, N).astype(C_BTGN.dtype)
    return kept[..., None] * product("btgn,bgrpn->btgrp", C_BTGN, state).reshape(batch, T, H, P)


def _choose(x: Array, G: int, N: int, chunk: int, implementation: Implementation | None) -> str:
    H, P = x.shape[2:]

    R = H // G

    def tpu() -> str | None:
        fits = chunk == 128 and N == 128 and P % 8 == 0 and R % 8 == 0 and (R * P) % 128 == 0
        takes = "chunk 128, state 128, and 8 n heads a group that fill 128 m lanes"
        return wrong_platform("tpu") or (None if fits else f"it takes {takes}, not {chunk}, {N}, {R} heads of {P}")

    def gpu() -> str | None:
        fits = chunk in (32, 64, 128) and N in (32, 64, 128) and P in (16, 32, 64, 128)
        takes = "chunks, states and heads of a power of two up to 128"
        return wrong_platform("gpu") or (None if fits else f"it takes {takes}, not {chunk}, {N}, {P}")

    obstacles = {"pallas_tpu": tpu, "pallas_gpu": gpu, "xla": lambda: None, "reference": lambda: None}
    return choose("ssd", implementation, obstacles)


def _backend(name: str) -> ModuleType:
    """Imported here, so that a machine without the back-end never touches it."""
    return importlib.import_module(f"pallas_kernels.ssd.{'tpu' if name == 'pallas_tpu' else 'gpu'}")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _ssd(name: str, rows: Rows, initial: Array, chunk: int) -> tuple[Array, Array]:
    y, final, _ = _backend(name).forward(rows, initial, chunk, keep_states=False)
    return y, final


def _forward(name: str, rows: Rows, initial: Array, chunk: int) -> tuple[tuple[Array, Array], tuple]:
    y, final, states = _backend(name).forward(rows, initial, chunk, keep_states=True)
    return (y, final), (rows, states)


def _backward(name: str, chunk: int, saved: tuple, gradients: tuple[Array, Array]) -> tuple[Rows, Array]:
    rows, states = saved
    return _backend(name).backward(rows, states, *gradients, chunk)


_ssd.defvjp(_forward, _backward)
