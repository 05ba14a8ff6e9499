"""Tile sizes, and what the GPU kernels of both directions share."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from pallas_kernels import tuning


class Tiles(NamedTuple):
    """Sizes of the padded problem and of one program."""

    rows: int
    columns: int
    ratio: int  # query heads that read one kv head
    queries: int  # in a tile
    keys: int
    warps: int
    stages: int


def tiles(direction: str, q: Array, k: Array) -> Tiles:
    """For q (B, T, H, D) and k (B, S, K, D). Tiles are powers of two, and 16 is the least that is multiplied."""
    T, H, D = q.shape[1:]
    S, K = k.shape[1:3]
    tuned = tuning.blocks(f"attention_{direction}_gpu", q.dtype, queries=T, keys=S, ratio=H // K, width=D)

    def fit(tile: int, length: int) -> int:
        return max(16, min(tile, 1 << (length - 1).bit_length()))

    queries, keys = fit(tuned["queries"], T), fit(tuned["keys"], S)
    return Tiles(
        -(-T // queries) * queries, -(-S // keys) * keys, H // K, queries, keys, tuned["warps"], tuned["stages"]
    )


def filled(a: Array, length: int) -> Array:
    """(B, T, ...) -> (B, length, ...), zeros behind."""
    return jnp.pad(a, [(0, 0), (0, length - a.shape[1])] + [(0, 0)] * (a.ndim - 2))


def bounds(meet_BIJ: Bool[Array, "B I J"]) -> tuple[Int[Array, "B I"], Int[Array, "B I"]]:
    """The first and the last column that each row meets; 0 and -1 where there is none."""
    columns = meet_BIJ.shape[2]
    column = jnp.arange(columns, dtype=jnp.int32)
    last = jnp.where(meet_BIJ, column, -1).max(2)
    return jnp.minimum(jnp.where(meet_BIJ, column, columns).min(2), last + 1), last


def sees(positions: Array, segments: Array, places: Array, key_segments: Array) -> Array:
    """Queries in rows, keys in columns."""
    same = (segments[:, None] == key_segments[None, :]) & (segments > 0)[:, None]
    return same & (places[None, :] <= positions[:, None])
