"""The device mesh, and the one table from the logical axes of weights to its axes."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, combinations
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cascade_jax import processes
from cascade_jax.config import ConfigError, MeshConfig

MESH_AXES = ("slice", "data", "fsdp", "expert", "tensor", "context")

# Rows of a batch are split by all of these, the tokens of a row by `context`.
BATCH_AXES = ("slice", "data", "fsdp", "expert")
TOKENS = PartitionSpec(BATCH_AXES, "context")  # of anything (B, T, ...)
# Rollouts grow token by token, so that `context` has rows of its own there.
ROLLOUT_AXES = (*BATCH_AXES, "context")

# What the modules call the dimensions of their weights -> the mesh axes that split them (None: nothing does).
# `slice` and `data` split activations, never weights; `context` splits weights at rest, as `fsdp` does.
LOGICAL_AXES: dict[str | None, str | tuple[str, ...] | None] = {
    "embed": ("fsdp", "expert", "context"),
    "expert_embed": ("fsdp", "context"),  # of a weight that `expert` splits already
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
        raise ConfigError(f"The mesh {asked} needs {math.prod(sizes)} devices and there are {len(devices)}.")
    return Mesh(np.asarray(devices).reshape(sizes), MESH_AXES)


def use(config: MeshConfig) -> AbstractContextManager[Any]:
    """Within it, all code runs on this mesh of all devices (jax.set_mesh); on one device there is none."""
    sizes = dataclasses.asdict(config)
    alone = set(sizes.values()) == {1} and processes.count() == 1
    return nullcontext() if alone else _set(make_mesh(**sizes))


@contextmanager
def _set(mesh: Mesh) -> Iterator[None]:
    with jax.set_mesh(mesh):
        if processes.count() > 1 and jax.default_backend() == "cpu":
            _meet(mesh)
        yield


def _meet(mesh: Mesh) -> None:
    """Gloo gives the members of a new group 30 s to meet, less than one may compile for longer; so they meet now."""
    names = [name for name in MESH_AXES if mesh.shape[name] > 1]
    for group in chain.from_iterable(combinations(names, count) for count in range(1, len(names) + 1)):

        def total(group: tuple[str, ...] = group) -> jax.Array:
            return jax.lax.psum(jax.lax.axis_index(group), group)

        jax.jit(jax.shard_map(total, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False))()


def shardings(axes: Any, mesh: Mesh, *, at_rest: bool = True) -> Any:
    """A NamedSharding for every weight of a tree of logical axis names (cascade_jax.model.apply.logical_axes)."""

    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(axes, at_rest=at_rest), is_leaf=_is_spec)


def specs(axes: Any, *, at_rest: bool = True) -> Any:
    """The same tree with a PartitionSpec for every weight; not at rest, what FSDP splits is whole on every device."""

    def one(names: tuple[str | None, ...]) -> PartitionSpec:
        gathered = () if at_rest else ("embed", "expert_embed")
        return PartitionSpec(*(None if name in gathered else LOGICAL_AXES[name] for name in names))

    return jax.tree.map(one, axes, is_leaf=lambda node: isinstance(node, tuple))


def put(array: Any, sharding: NamedSharding) -> jax.Array:
    """The array, on this process or all over the mesh, where the sharding says; no process copies what others hold."""
    if sharding.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        return jax.device_put(array, sharding)
    local = np.asarray(array)
    return jax.make_array_from_callback(local.shape, sharding, lambda part: local[part], dtype=local.dtype)


def by_rows(tree: Any) -> Any:
    """Arrays (B, T), the same on every process, as the mesh in use splits rows and tokens; without one, unchanged."""
    mesh = jax.sharding.get_mesh()
    return jax.tree.map(lambda leaf: put(leaf, NamedSharding(mesh, TOKENS)), tree) if mesh.size > 1 else tree


def by_part(shape: tuple[int, int], make: Callable[[slice, slice], np.ndarray]) -> jax.Array | np.ndarray:
    """The same for an array (B, T) of which make(rows, tokens) makes a part: this process needs its devices' alone."""
    mesh = jax.sharding.get_mesh()
    if mesh.size <= 1:
        return make(slice(None), slice(None))
    return jax.make_array_from_callback(shape, NamedSharding(mesh, TOKENS), lambda part: make(*part))


def on_all(tree: Any) -> Any:
    """What no process shares with others yet, such as an optimizer's counters, whole on every device of the mesh."""
    mesh = jax.sharding.get_mesh()
    whole = NamedSharding(mesh, PartitionSpec()) if mesh.size > 1 else None
    if whole is None:  # an array that is bound to no device would be a reason to compile the second step anew
        return jax.device_put(tree, jax.local_devices()[0])
    if whole.is_fully_addressable:
        return tree
    return jax.tree.map(lambda leaf: put(leaf, whole) if leaf.is_fully_addressable else leaf, tree)


def batch_shares(axes: tuple[str, ...] = BATCH_AXES) -> int:
    """Into how many parts the mesh (jax.set_mesh) splits the rows of a batch; their number must be a multiple."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in axes if axis in shape)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
