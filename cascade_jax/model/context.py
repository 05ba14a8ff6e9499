"""Context parallelism outside attention: what reaches over the edge of a shard when a row is split among devices.

All run inside `jax.shard_map`, on the arrays of one rank: rank r of the axis holds the tokens r T .. (r + 1) T - 1 of
each row. Segments are those of the whole row. Attention is in cascade_jax.model.ring.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.ssd import ssd, ssd_carried

Tree = TypeVar("Tree")


def positions_parallel(segments_BT: Int[Array, "B T"], *, axis: str = "context") -> Int[Array, "B T"]:
    """The place of each token in its segment. Pads form segments too."""
    T = segments_BT.shape[1]
    before = jnp.concatenate([_from_before(segments_BT[:, -1:], 1, axis), segments_BT[:, :-1]], axis=1)
    places = jax.lax.axis_index(axis) * T + jnp.arange(T)
    starts = jax.lax.cummax(jnp.where(segments_BT != before, places, 0), axis=1)
    earlier = _from_before(_prefix(jnp.maximum, starts[:, -1:], axis), 1, axis)
    return places - jnp.maximum(starts, earlier)


def conv_halo(
    raw_BTC: Float[Array, "B T C"], segments_BT: Int[Array, "B T"], width: int, *, axis: str = "context"
) -> tuple[Float[Array, "B W C"], Int[Array, "B W"]]:
    """The last `width` inputs and segments of the shard before, as causal_conv takes them; padding at the first.

    ValueError if a shard has fewer tokens.
    """
    T = raw_BTC.shape[1]
    if width > T:
        raise ValueError(
            f"A context shard of {T} tokens is shorter than the {width} that the convolution looks back: "
            "use longer rows or fewer context shards."
        )
    return _from_before((raw_BTC[:, T - width :], segments_BT[:, T - width :]), 1, axis)


def ssd_parallel(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    *,
    chunk: int,
    axis: str = "context",
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"]]:
    """ssd over whole rows, from an empty state; y and the state at the end of the row, the same on all ranks.

    A shard turns the state S before it into left S + state, and two such maps combine to another: log2(ranks)
    messages of left (B, H) and state (B, H, P, N) give each rank the state before its shard.
    """
    before_B = _from_before(segments_BT[:, -1], 1, axis)
    y, *shard = ssd(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, segments_BT, chunk=chunk, before_segment=before_B)

    def combine(first: list[Array], second: list[Array]) -> list[Array]:
        (state, left), (later_state, later_left) = first, second
        return [later_left[..., None, None] * state + later_state, later_left * left]

    after, _ = _prefix(combine, shard, axis)
    start = _from_before(after, 1, axis)
    y = y + ssd_carried(dt_BTH, A_H, C_BTGN, segments_BT, start, before_B).astype(y.dtype)
    last = jax.lax.axis_index(axis) == jax.lax.axis_size(axis) - 1
    return y, jax.lax.psum(jnp.where(last, after, 0.0), axis)


def _from_before(values: Tree, distance: int, axis: str) -> Tree:
    """The values of the rank so far before this one; zeros where there is none."""
    pairs = [(rank, rank + distance) for rank in range(jax.lax.axis_size(axis) - distance)]
    return jax.lax.ppermute(values, axis, pairs)


def _prefix(combine: Callable[[Tree, Tree], Tree], values: Tree, axis: str) -> Tree:
    """The values of all ranks up to this one, combined; zeros stand for all that is before the first."""
    distance = 1
    while distance < jax.lax.axis_size(axis):
        values = combine(_from_before(values, distance, axis), values)
        distance *= 2
    return values
