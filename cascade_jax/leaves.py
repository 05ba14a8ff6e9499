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


def misfits(found: Any, wanted: Any) -> list[str]:
    """What keeps one tree of arrays from being the other, a phrase for each path; none where names and shapes agree."""
    here, there = ({path: tuple(leaf.shape) for path, leaf in by_path(tree).items()} for tree in (found, wanted))
    faults = [f"{path} is missing" for path in there if path not in here]
    faults += [f"{path} is left over" for path in here if path not in there]
    shared = [path for path in there if path in here]
    return faults + [f"{p} has shape {here[p]} instead of {there[p]}" for p in shared if here[p] != there[p]]


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
