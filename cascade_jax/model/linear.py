"""Weight declarations and the one matrix product that all layers use."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

Axes = tuple[str | None, ...]  # a logical name per dimension; cascade_jax.mesh maps them to mesh axes


def normal(key: Array, shape: tuple[int, ...], axes: Axes, *, std: float) -> nnx.Param:
    """A float32 weight drawn from N(0, std)."""
    return nnx.Param(std * jax.random.normal(key, shape, jnp.float32), axes=axes)


def constant(value: float, shape: tuple[int, ...], axes: Axes) -> nnx.Param:
    """A float32 weight that starts as one value."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


def matmul32(x: Float[Array, "... i"], weight: Float[Array, "i o"]) -> Float[Array, "... o"]:
    """x @ weight with both in x's dtype; float32 accumulation and float32 out."""
    # Two-dimensional on purpose: with more, XLA's CPU backend takes twice as long for the weight's gradient.
    rows = x.reshape(-1, x.shape[-1])
    product = jnp.matmul(
        rows, weight.astype(x.dtype), precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return product.reshape(*x.shape[:-1], -1)


def project(x: Float[Array, "... i"], weight: Float[Array, "i o"]) -> Float[Array, "... o"]:
    """x @ weight in x's dtype with float32 accumulation."""
    return matmul32(x, weight).astype(x.dtype)
