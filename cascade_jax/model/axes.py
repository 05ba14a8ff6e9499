"""What layers need to know of the mesh while they run on one device's share of weights and tokens (jax.shard_map).

Outside of shard_map every axis has size 1 and nothing here does anything: the layers are one code for both.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from cascade_jax.config import ModelConfig

GATHERED = ("fsdp", "expert", "context")  # split the `embed` dimension of weights at rest; layers see all of it
FLOAT32 = ("router", "conv_weight")  # matrices that take part in no product of the network's dtype


def size(axis: str) -> int:
    """How many shares the axis makes, where this code runs on one of them."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[axis] if axis in mesh.manual_axes else 1


def index(axis: str) -> Array | int:
    """Which share this is."""
    return jax.lax.axis_index(axis) if size(axis) > 1 else 0


def total(x: Any, *axes: str) -> Any:
    """The sum of every array in x over the shares that the axes make."""
    split = tuple(axis for axis in axes if size(axis) > 1)
    return jax.lax.psum(x, split) if split else x


def whole(x: Array, axis: str, *, dim: int) -> Array:
    """The shares of x along one of its dimensions, put together."""
    return jax.lax.all_gather(x, axis, axis=dim, tiled=True) if size(axis) > 1 else x


def exchange() -> Literal["ragged", "dense", "gather"]:
    """How tokens reach their experts on these devices, by the names of cascade_jax.model.exchange.

    Between two ranks nearly every token goes to both, so all are gathered. CPU and TPU v5e compilers have no exchange
    of ragged parts.
    """
    if size("expert") == 2:
        return "gather"
    device = jax.sharding.get_abstract_mesh().abstract_device
    return "dense" if device.platform == "cpu" or "v5 lite" in device.device_kind.lower() else "ragged"


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def gather(share: Array, axes: tuple[str, ...], dim: int, dtype: jnp.dtype) -> Array:
    """The whole weight in the dtype that it is multiplied in; its gradient is summed in float32 all the same.

    Axis by axis, the last one's small parts first: over two at once shares are too narrow for a TPU's tiles (2688 rows
    over 64 devices are 42 each), and one such collective takes five times as long to compile as both of these.
    """
    share = share.astype(dtype)
    for axis in reversed(axes):
        share = jax.lax.all_gather(share, axis, axis=dim, tiled=True)
    return share


def _gather_forward(share: Array, axes: tuple[str, ...], dim: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    return gather(share, axes, dim, dtype), jnp.zeros((), share.dtype)


def _gather_backward(axes: tuple[str, ...], dim: int, _: jnp.dtype, kind: Array, whole: Array) -> tuple[Array]:
    share = whole.astype(jnp.float32)
    for axis in axes:
        share = jax.lax.psum_scatter(share, axis, scatter_dimension=dim, tiled=True)
    return (share.astype(kind.dtype),)


gather.defvjp(_gather_forward, _gather_backward)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gathered:
    """A weight's share at rest (FSDP), whole when it is read as `weight[...]`: inside of a layer, so that a layer that
    is computed again gathers again, and at most one layer's weights are ever whole."""

    share: Array
    dim: int = field(metadata={"static": True})
    axes: tuple[str, ...] = field(metadata={"static": True})
    dtype: jnp.dtype = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.share.shape

    def __getitem__(self, _: EllipsisType) -> Array:
        return gather(self.share, self.axes, self.dim, self.dtype)


def beside(weights: Sequence[Gathered]) -> Array:
    """Their columns side by side, gathered at once. All have to be split along the same rows."""
    first = weights[0]
    share = jnp.concatenate([weight.share for weight in weights], axis=-1)
    return dataclasses.replace(first, share=share)[...]


def gathered(share: Array, spec: PartitionSpec, dtype: jnp.dtype) -> Array | Gathered:
    """The share of a weight that lies as `spec` says, to be read whole, in that dtype, where FSDP split it."""
    for dim, axes in enumerate(spec):
        axes = (axes,) if isinstance(axes, str) else axes or ()
        here = tuple(axis for axis in axes if axis in GATHERED and size(axis) > 1)
        # The expert dimension of experts' weights is split for good: it is not gathered, tokens travel instead.
        if axes != ("expert",) and here:
            return Gathered(share, dim, here, dtype)
    return share


def read_dtype(path: str, share: Array, dtype: str) -> jnp.dtype:
    """The dtype that layers read a weight in: matrices in the network's, if they cast them anyway, others as stored."""
    exact = share.ndim < 2 or any(name in FLOAT32 for name in path.split("/"))
    return share.dtype if exact else jnp.dtype(dtype)


def local(config: ModelConfig, tensor: int) -> ModelConfig:
    """The network as one of `tensor` devices has it, with its share of heads and groups; ValueError if none is even."""
    if tensor == 1:
        return config
    split = []
    if "*" in config.pattern:
        split += ["heads", "kv_heads"]
    if "M" in config.pattern:
        split += ["mamba_heads", "mamba_groups"]
    for name in split:
        if getattr(config, name) % tensor:
            raise ValueError(
                f"the mesh axis tensor={tensor} does not divide {name}={getattr(config, name)}; choose a divisor of it."
            )
    return dataclasses.replace(config, **{name: getattr(config, name) // tensor for name in split})
