"""The list of tiles that a kernel visits, one a step of its grid."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Work(NamedTuple):
    """The tile visited at step w < steps is pairs[w] = (b rows + row) columns + column; those of a row in a row."""

    pairs: Int[Array, " N"]
    steps: Int[Array, ""]


def work(meet_BIJ: Bool[Array, "B I J"]) -> Work:
    """For each row i the columns from the first that meets it to the last; a row that meets none visits one.

    Every row is visited, because its result must be written. Made without sort, scatter or gather, which take the TPU
    compiler seconds each.
    """
    B, rows, columns = meet_BIJ.shape
    meet = meet_BIJ.reshape(B * rows, columns)
    column = jnp.arange(columns)
    first = jnp.where(meet, column, columns).min(1)
    last = jnp.where(meet, column, 0).max(1)
    first = jnp.minimum(first, last)  # 0 and 0 where none meets
    count = last + 1 - first
    ends = jnp.cumsum(count)
    starts = ends - count
    step = jnp.arange(meet.size)[:, None]
    shift = jnp.arange(B * rows) * columns + first - starts
    pairs = step[:, 0] + jnp.where((starts <= step) & (step < ends), shift, 0).sum(1)
    return Work(pairs.astype(jnp.int32), ends[-1].astype(jnp.int32))
