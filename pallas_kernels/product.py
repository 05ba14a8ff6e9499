"""Products with float32 sums: `product` in the portable implementations, `contract` inside of kernels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import target

LOG2_E = 1.4426950408889634  # kernels take powers of two, which devices have in hardware


def product(equation: str, a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """einsum with float32 sums. A CPU has no batched bfloat16 product with them: there the factors are widened."""
    if target().platform == "cpu":
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    precision = "highest" if a.dtype == jnp.float32 else None  # bfloat16 is exact anyway, and compiles faster unasked
    return jnp.einsum(equation, a, b, precision=precision, preferred_element_type=jnp.float32)


def contract(a: Array, b: Array, dims: tuple[int, int]) -> Array:
    """The product of matrices over those dimensions, with float32 sums; of float32 matrices in full."""
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    dimensions = (((dims[0],), (dims[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, precision=exact, preferred_element_type=jnp.float32)
