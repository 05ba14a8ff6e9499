"""Arrays that wait in the host's memory until a device needs them: moments between steps, teachers, a reference."""

from typing import Any

import jax


def to_host(tree: Any) -> Any:
    """The tree with its arrays in host memory, split as they were. Numbers stay, and all where a backend has none."""
    return jax.tree.map(lambda leaf: _moved(leaf, "pinned_host"), tree)


def to_device(tree: Any) -> Any:
    """And back."""
    return jax.tree.map(lambda leaf: _moved(leaf, "device"), tree)


def _moved(leaf: Any, kind: str) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.ndim == 0:
        return leaf
    device = next(iter(leaf.sharding.device_set))
    kinds = {memory.kind for memory in device.addressable_memories()}
    return jax.device_put(leaf, leaf.sharding.with_memory_kind(kind)) if kind in kinds else leaf
