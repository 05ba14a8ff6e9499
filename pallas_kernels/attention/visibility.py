"""Which key a query sees, and which tiles of keys a tile of queries needs.

A query at place p of segment g sees the keys 0..p whose segment is g; in segment 0 it sees nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Visibility(NamedTuple):
    """What the mask is made of: the place of a query among the keys, and the segments of both."""

    query_positions: Int[Array, "B T"]
    query_segments: Int[Array, "B T"]
    key_segments: Int[Array, "B S"]


def mask(seen: Visibility) -> Bool[Array, "B T S"]:
    """True where the query sees the key."""
    places = jnp.arange(seen.key_segments.shape[1])
    causal = places <= seen.query_positions[:, :, None]
    same = seen.query_segments[:, :, None] == seen.key_segments[:, None, :]
    return causal & same & (seen.query_segments[:, :, None] > 0)


def padded(seen: Visibility, queries: int, keys: int) -> Visibility:
    """For rows filled up to that many queries and keys with padding, which neither sees nor is seen."""

    def fill(a: Array, length: int) -> Array:
        return jnp.pad(a, [(0, 0), (0, length - a.shape[1])])

    positions, query_segments, key_segments = seen
    return Visibility(fill(positions, queries), fill(query_segments, queries), fill(key_segments, keys))


def tiles_that_meet(seen: Visibility, queries: int, keys: int) -> Bool[Array, "B I J"]:
    """False only where no query of tile i sees a key of tile j; tiles of that many, whole ones.

    Tiles whose segment numbers have disjoint ranges do not meet. Documents in the order of their numbers, as packing
    lays them, make that exact but for tiles at the edges of documents.
    """

    def tiles(a: Array, size: int) -> Array:
        return a.reshape(a.shape[0], -1, size)

    def ends(segments: Array) -> tuple[Array, Array]:
        return jnp.where(segments > 0, segments, jnp.iinfo(segments.dtype).max).min(-1), segments.max(-1)

    own, other = tiles(seen.query_segments, queries), tiles(seen.key_segments, keys)
    (low, high), (other_low, other_high) = ends(own), ends(other)
    same = (low[:, :, None] <= other_high[:, None, :]) & (other_low[:, None, :] <= high[:, :, None])
    last = jnp.where(own > 0, tiles(seen.query_positions, queries), -1).max(-1)
    return same & (jnp.arange(other.shape[1]) * keys <= last[:, :, None])
