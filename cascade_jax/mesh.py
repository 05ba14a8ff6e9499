"""The device mesh, and the one table from the logical axes of weights to its axes."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("slice", "data", "fsdp", "expert", "tensor", "context")

# What the modules call the dimensions of their weights -> the mesh axis that splits them (None: nothing does).
# `slice`, `data` and `context` split activations, never weights.
LOGICAL_AXES: dict[str | None, str | None] = {
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": "expert",
    None: None,
}


def make_mesh(
    *,
    slice: int = 1,
    data: int = 1,
    fsdp: int = 1,
    expert: int = 1,
    tensor: int = 1,
    context: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh with axes of these names and sizes over `devices` (all of them by default)."""
    devices = jax.devices() if devices is None else devices
    sizes = (slice, data, fsdp, expert, tensor, context)
    if math.prod(sizes) != len(devices):
        asked = " * ".join(f"{name} {size}" for name, size in zip(MESH_AXES, sizes, strict=True))
        raise ValueError(f"The mesh {asked} needs {math.prod(sizes)} devices and there are {len(devices)}.")
    return Mesh(np.asarray(devices).reshape(sizes), MESH_AXES)


def shardings(axes: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every weight of a tree of logical axis names (cascade_jax.model.apply.logical_axes)."""

    def one(names: tuple[str | None, ...]) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(LOGICAL_AXES[name] for name in names)))

    return jax.tree.map(one, axes, is_leaf=lambda node: isinstance(node, tuple))
