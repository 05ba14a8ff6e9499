"""Weight declarations and the one matrix product that all layers use."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from cascade_jax.model import axes as mesh_axes

EXACT = jax.lax.Precision.HIGHEST  # float32 stays float32, on TPUs too; and a CPU takes bfloat16 in no other

Axes = tuple[str | None, ...]  # a logical name per dimension; cascade_jax.mesh maps them to mesh axes


def normal(key: Array, shape: tuple[int, ...], axes: Axes, *, std: float) -> nnx.Param:
    """A float32 weight drawn from N(0, std)."""
    return nnx.Param(std * jax.random.normal(key, shape, jnp.float32), axes=axes)


def constant(value: float, shape: tuple[int, ...], axes: Axes) -> nnx.Param:
    """A float32 weight that starts as one value."""
    return nnx.Param(jnp.full(shape, value, jnp.float32), axes=axes)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRank:
    """base + scale * a @ b, never formed (LoRA, arXiv 2106.09685). It stands in params where the base would."""

    base: Float[Array, "*experts i o"]
    a: Float[Array, "*experts i r"]
    b: Float[Array, "*experts r o"]
    scale: float = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def __getitem__(self, index: EllipsisType) -> "LowRank":
        """All of it: modules read what a Param holds as `weight[...]`."""
        return LowRank(self.base[...], self.a[...], self.b[...], self.scale)


Weight = Array | LowRank


def matmul32(x: Float[Array, "... i"], weight: Float[Weight, "i o"]) -> Float[Array, "... o"]:
    """x @ weight with both in x's dtype; float32 accumulation and float32 out."""
    if isinstance(weight, LowRank):
        low = matmul32(project(x, weight.a), weight.b)
        return matmul32(x, weight.base) + weight.scale * low
    # Two-dimensional on purpose: with more, XLA's CPU backend takes twice as long for the weight's gradient.
    product = _product(x.reshape(-1, x.shape[-1]), weight.astype(x.dtype))
    return product.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product(x: Float[Array, "n i"], weight: Float[Array, "i o"]) -> Float[Array, "n o"]:
    return jnp.matmul(x, weight, precision=EXACT, preferred_element_type=jnp.float32)


def _product_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, weight), (x, weight)


def _product_backward(saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """In the dtype of the forward product; autodiff would make both factors float32, which costs six times as much."""
    x, weight = saved
    dy = dy.astype(x.dtype)
    return _product(dy, weight.T).astype(x.dtype), _product(x.T, dy).astype(weight.dtype)


_product.defvjp(_product_forward, _product_backward)


def project(x: Float[Array, "... i"], weight: Float[Weight, "i o"]) -> Float[Array, "... o"]:
    """x @ weight in x's dtype with float32 accumulation."""
    return matmul32(x, weight).astype(x.dtype)


def project_each(x: Float[Array, "... i"], weights: Sequence[nnx.Param]) -> list[Float[Array, "... o"]]:
    """x @ each weight. What FSDP gathers, which copies it anyway, is one matrix: each product is slow to compile."""
    shares = [weight.get_value() for weight in weights]
    if not all(isinstance(share, mesh_axes.Gathered) for share in shares):
        return [project(x, weight[...]) for weight in weights]
    ends = np.cumsum([share.shape[-1] for share in shares])
    return jnp.split(project(x, mesh_axes.beside(shares)), ends[:-1], axis=-1)
