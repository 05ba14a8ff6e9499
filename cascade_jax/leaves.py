"""The weights of a tree by the names that configs and messages use: "layers/3/mixer/q_proj"."""

from collections.abc import Callable, Mapping
from typing import Any

import jax


def by_path(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """path -> leaf, in the tree's own order; also what `is_leaf` takes for one."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)}


def map_by_path(rule: Callable[[str, Any], Any], tree: Any) -> Any:
    """The tree with rule(path, leaf) for each leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: rule(_name(path), leaf), tree)


def with_leaves(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """The tree with the given leaves in place of its own."""
    return map_by_path(lambda path, leaf: leaves.get(path, leaf), tree)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
