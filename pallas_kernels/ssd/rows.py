"""What all implementations of the scan are given."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.ssd.decay import Prefix, prefix_sums


class Rows(NamedTuple):
    """T is a whole number of chunks."""

    x: Float[Array, "B T H P"]
    dt: Float[Array, "B T H"]
    prefix: Prefix  # (B, H, T)
    B: Float[Array, "B T G N"]
    C: Float[Array, "B T G N"]
    segments: Int[Array, "B T"]
    before: Int[Array, " B"]  # the segment of the state before the row


def prepare(x: Array, dt: Array, A: Array, B: Array, C: Array, segments: Array, before: Array, *, chunk: int) -> Rows:
    """Fills the last chunk with tokens of dt = 0, which leave the state as it was."""
    extra = -x.shape[1] % chunk

    def fill(a: Array, mode: str = "constant") -> Array:
        return jnp.pad(a, [(0, 0), (0, extra)] + [(0, 0)] * (a.ndim - 2), mode=mode) if extra else a

    dt = fill(dt)
    prefix = prefix_sums((dt * A).swapaxes(1, 2), chunk)
    return Rows(fill(x), dt, prefix, fill(B), fill(C), fill(segments, "edge"), before)
