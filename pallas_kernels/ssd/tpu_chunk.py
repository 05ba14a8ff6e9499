"""What the TPU kernels of both directions share: how a chunk is laid out, and its decays."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from pallas_kernels.ssd.rows import Rows

Interpret = bool | pltpu.InterpretParams


class Sizes(NamedTuple):
    """B rows of Z chunks of Q tokens; G groups of R heads of width P, with states P x N."""

    B: int
    Z: int
    Q: int
    G: int
    R: int
    P: int
    N: int


def sizes(rows: Rows, chunk: int) -> Sizes:
    B, T, H, P = rows.x.shape
    G, N = rows.B.shape[2:]
    return Sizes(B, T // chunk, chunk, G, H // G, P, N)


def arrays(rows: Rows, s: Sizes) -> list[Array]:
    """x, dt, coarse, fine, B, C, segments and the segment before each chunk, as the kernels read them."""
    T = s.Z * s.Q

    def of_heads(a: Array) -> Array:
        return a.reshape(s.B, s.G, s.R, T)

    last = rows.segments.reshape(s.B, s.Z, s.Q)[:, :, -1]
    before = jnp.concatenate([rows.before[:, None], last[:, :-1]], axis=1)
    return [
        rows.x.reshape(s.B, T, -1),
        of_heads(rows.dt.swapaxes(1, 2)),
        *map(of_heads, rows.prefix),
        rows.B.reshape(s.B, T, -1),
        rows.C.reshape(s.B, T, -1),
        rows.segments.reshape(s.B, 1, T),
        jnp.repeat(before, s.Q, axis=1).reshape(s.B, 1, T),
    ]


def input_specs(s: Sizes, order: Callable) -> list[pl.BlockSpec]:
    """Of all arrays but the first, for a grid (B, G, Z) that takes chunk order(z) at step z."""
    of_heads = pl.BlockSpec((1, 1, s.R, s.Q), lambda b, g, z: (b, g, 0, order(z)))
    of_group = pl.BlockSpec((1, s.Q, s.N), lambda b, g, z: (b, order(z), g))
    of_token = pl.BlockSpec((1, 1, s.Q), lambda b, g, z: (b, 0, order(z)))
    return [of_heads] * 3 + [of_group] * 2 + [of_token] * 2


class Decays(NamedTuple):
    """Of one chunk, (R, Q) but for the first. The decay from s to l is 2^(coarse_l - coarse_s) source[s] sink[l].

    Of the two parts of the prefix sums only the coarse one takes part in differences of pairs, which are exact; 2^fine
    is near 1 and goes to the rows. Spreading a column over the lanes is dear here, and this needs one a head.
    """

    hidden: Array  # (Q, Q): 0 where l sees s, else -inf
    source: Array
    sink: Array
    kept: Array  # of the state before the chunk, at l
    to_end: Array  # from s to the last token


def decays(coarse: Array, fine: Array, segments: Array, before: Array) -> Decays:
    """From prefix sums (R, Q), the tokens' segments (1, Q) and, in every lane, the segment before the chunk."""
    Q = coarse.shape[1]
    own = jnp.broadcast_to(segments, (Q, Q))
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (Q, Q), axis) for axis in (0, 1))
    hidden = jnp.where((row <= column) & (own == own.T), 0.0, -jnp.inf)
    kept = jnp.where(segments == before, jnp.exp2(coarse + fine), 0.0)
    to_end = jnp.exp2((coarse[:, -1:] - coarse) + (fine[:, -1:] - fine))
    to_end = jnp.where(segments == segments[:, -1:], to_end, 0.0)
    return Decays(hidden, jnp.exp2(-fine), jnp.exp2(fine), kept, to_end)


def pairs(coarse_ref, coarse_s: Array, hidden: Array, r: int) -> Array:
    """2^(coarse_l - coarse_s) of head r, [s, l]; coarse_s is (Q, R)."""
    return jnp.exp2((coarse_ref[0, 0, r : r + 1] - coarse_s[:, r : r + 1]) + hidden)
