"""What the GPU kernels of both directions share: how a row is laid out, and the decays of a chunk."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.ssd.rows import Rows


def arrays(rows: Rows, chunk: int) -> list[Array]:
    """x, dt, coarse, fine, B, C, segments and the segment before each chunk, as the kernels read them."""
    before = jnp.concatenate([rows.before[:, None], rows.segments[:, chunk - 1 : -1 : chunk]], axis=1)
    return [rows.x, rows.dt.swapaxes(1, 2), *rows.prefix, rows.B, rows.C, rows.segments, before]


def specs(rows: Rows, chunk: int) -> list[pl.BlockSpec]:
    """Of those, for a grid (H, B): each program sees its whole row and reads a chunk at a time."""
    T, H, P = rows.x.shape[1:]
    G, N = rows.B.shape[2:]
    R = H // G
    of_x = pl.BlockSpec((None, T, None, P), lambda h, b: (b, 0, h, 0))
    of_head = pl.BlockSpec((None, None, T), lambda h, b: (b, h, 0))
    of_group = pl.BlockSpec((None, T, None, N), lambda h, b: (b, 0, h // R, 0))
    of_row = [pl.BlockSpec((None, length), lambda h, b: (b, 0)) for length in (T, T // chunk)]
    return [of_x, of_head, of_head, of_head, of_group, of_group, *of_row]


class Decays(NamedTuple):
    """Of one chunk of one head."""

    pairs: Array  # [l, s]: from s to l, 0 where l does not see s
    kept: Array  # of the state before the chunk, at l
    to_end: Array  # from s to the last token
    end: Array  # of the state before the chunk, at the last token


def decays(coarse_ref, fine_ref, segments_ref, before_ref, z: Array, chunk: int) -> Decays:
    """Of chunk z. Differences of coarse parts are exact; see pallas_kernels.ssd.decay."""
    tokens, last = pl.ds(z * chunk, chunk), z * chunk + chunk - 1
    coarse, fine, segments = coarse_ref[tokens], fine_ref[tokens], segments_ref[tokens]
    places = jnp.arange(chunk)
    sums = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    same = (segments[:, None] == segments[None, :]) & (places[None, :] <= places[:, None])
    to_end = jnp.exp2((coarse_ref[last] - coarse) + (fine_ref[last] - fine))
    return Decays(
        jnp.exp2(jnp.where(same, sums, -jnp.inf)),
        jnp.where(segments == before_ref[z], jnp.exp2(coarse + fine), 0.0),
        jnp.where(segments == segments_ref[last], to_end, 0.0),
        jnp.where(segments_ref[last] == before_ref[z], jnp.exp2(coarse_ref[last] + fine_ref[last]), 0.0),
    )
