"""Tile sizes, and what the TPU kernels of both directions share."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels import tuning

LANES = 128


class Tiles(NamedTuple):
    """Sizes of the padded problem and of one step."""

    batch: int
    rows: int
    columns: int
    kv_heads: int
    ratio: int  # query heads that read one kv head
    width: int
    queries: int  # in a tile
    keys: int
    chunk: int  # keys that are multiplied at once
    heads: int  # whose queries are stacked in one product


def tiles(direction: str, q: Array, k: Array) -> Tiles:
    """For q (B, T, H, D) and k (B, S, K, D); ragged ends are filled up, short rows take small tiles."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    tuned = tuning.blocks(f"attention_{direction}", q.dtype, queries=T, keys=S, ratio=H // K, width=D)
    least = LANES if direction == "keys" else 16  # there the queries lie along the lanes
    queries = min(tuned["queries"], -(-T // least) * least)
    keys = min(tuned["keys"], -(-S // LANES) * LANES)
    heads = math.gcd(tuned["heads"], H // K)
    rows, columns = -(-T // queries) * queries, -(-S // keys) * keys
    return Tiles(B, rows, columns, K, H // K, D, queries, keys, math.gcd(tuned["chunk"], keys), heads)


def padded_rows(size: Tiles, q: Array, k: Array, v: Array, *like_q: Array) -> tuple[Array, ...]:
    """(B, T, H, D) -> (B, T', H D) of whole tiles: a view, no transposition."""

    def flat(a: Array, length: int) -> Array:
        return jnp.pad(a.reshape(*a.shape[:2], -1), [(0, 0), (0, length - a.shape[1]), (0, 0)])

    return tuple(flat(a, n) for a, n in zip((q, k, v, *like_q), _lengths(size), strict=False))


def _lengths(size: Tiles) -> tuple[int, ...]:
    return size.rows, size.columns, size.columns, size.rows


def spec(size: Tiles, shape: tuple[int, ...], place: str, *, transposed: bool) -> pl.BlockSpec:
    """A block whose place in the array is spelt with b row, i tile of queries, j tile of keys, h kv head, 0 the first.

    The list of work is over tiles of queries and, for each, tiles of keys; transposed, the other way round.
    """
    tiles_of_queries, tiles_of_keys = size.rows // size.queries, size.columns // size.keys
    outer, inner = (tiles_of_keys, tiles_of_queries) if transposed else (tiles_of_queries, tiles_of_keys)

    def index(head: Array, step: Array, pairs: Array) -> tuple:
        row, last = jax.lax.div(pairs[step], inner), jax.lax.rem(pairs[step], inner)
        batch, middle = jax.lax.div(row, outer), jax.lax.rem(row, outer)
        i, j = (last, middle) if transposed else (middle, last)
        return tuple({"b": batch, "i": i, "j": j, "h": head, "0": 0}[letter] for letter in place)

    return pl.BlockSpec(shape, index)


def edges(pairs: Array, columns: int) -> tuple[Array, Array, Array]:
    """In the kernel: is this the first step of its row of tiles, is it the last, and the column."""
    step, steps = pl.program_id(1), pl.num_programs(1)

    def row(step: Array) -> Array:
        return jax.lax.div(pairs[step], columns)

    first = (step == 0) | (row(jnp.maximum(step - 1, 0)) != row(step))
    last = (step == steps - 1) | (row(jnp.minimum(step + 1, steps - 1)) != row(step))
    return first, last, jax.lax.rem(pairs[step], columns)


def columns_of(size: Tiles) -> list[slice]:
    """The parts of a tile of keys that are multiplied at once."""
    return [slice(at, at + size.chunk) for at in range(0, size.keys, size.chunk)]
