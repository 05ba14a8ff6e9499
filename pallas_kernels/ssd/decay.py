"""Logarithms of decays inside a chunk, such that differences of them are exact."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.product import LOG2_E

_BITS = 22  # a sum of coarse parts takes one more, and float32 holds 24


class Prefix(NamedTuple):
    """Sums of a from the chunk's first token to each, as two parts, in units of log 2.

    The decay from token s to token l is 2^((coarse_l - coarse_s) + (fine_l - fine_s)). Plain prefix sums would lose
    up to 1e-3 of a decay where dt is large, and let one document blur the next. Here the coarse parts are whole
    multiples of one power of two, so that sums and differences of them are exact in any order, and the fine parts
    are smaller than the rounding of the plain ones.
    """

    coarse: Float[Array, "... T"]
    fine: Float[Array, "... T"]


def prefix_sums(a: Float[Array, "... T"], chunk: int) -> Prefix:
    """Of log decays a <= 0 along the last axis, which is a multiple of chunk. The gradient passes through `fine`."""
    a = (a * LOG2_E).reshape(*a.shape[:-1], -1, chunk)
    total = jax.lax.stop_gradient(-a.sum(-1, keepdims=True))
    # The power of two at or below total: its exponent bits alone.
    power = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(total, jnp.int32) & 0x7F800000, jnp.float32)
    step = jnp.maximum(power * 2.0**-_BITS, jnp.finfo(jnp.float32).tiny)
    coarse = jax.lax.stop_gradient(jnp.round(a / step) * step)
    # Triangular products, not cumsum: small programs on every accelerator.
    upto = jnp.triu(jnp.ones((chunk, chunk), a.dtype))

    def sums(parts: Array) -> Array:
        return jnp.matmul(parts, upto, precision="highest").reshape(*a.shape[:-2], -1)

    return Prefix(sums(coarse), sums(a - coarse))
