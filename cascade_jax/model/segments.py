"""Where packed sequences begin and end."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def segment_bounds(segments_BT: Int[Array, "B T"]) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """For each position the first position of its segment, and the one after its last. Pads form segments too."""
    T = segments_BT.shape[1]
    change = segments_BT[:, 1:] != segments_BT[:, :-1]
    places = jnp.arange(T)
    first = jnp.pad(change, [(0, 0), (1, 0)], constant_values=True)
    last = jnp.pad(change, [(0, 0), (0, 1)], constant_values=True)
    starts = jax.lax.cummax(jnp.where(first, places, 0), axis=1)
    ends = jax.lax.cummin(jnp.where(last, places + 1, T), axis=1, reverse=True)
    return starts, ends
