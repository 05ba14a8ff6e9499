"""Low-rank adapters (LoRA, arXiv 2106.09685): which weights get them, and how they go back into the weights.

An adapted weight is a LowRank in the place of the array, so every path through the network is the same code. Not qwix:
it rewrites a module object and finds weights by intercepting dot_general, which does not see those that the experts'
scan slices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from cascade_jax.config import ConfigError, LoRAConfig
from cascade_jax.leaves import by_path, with_leaves
from cascade_jax.model.linear import LowRank
from cascade_jax.seeding import derive
from cascade_jax.types import Params

# Names of matrices -> what a config calls them. Of up, down and gate the routed experts' have one dimension more.
KINDS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "attention"),
    **dict.fromkeys(("z_proj", "x_proj", "B_proj", "C_proj", "dt_proj"), "mamba"),
    "out_proj": "mamba_out",
    **dict.fromkeys(("up", "down", "gate"), "mlp"),
    **dict.fromkeys(("latent_in", "latent_out"), "experts"),
}


def targets(params: Params, config: LoRAConfig) -> dict[str, jax.Array]:
    """path -> weight that gets an adapter. ConfigError where the targets name no weight of this network."""
    kinds = {path: _kind(path, weight) for path, weight in by_path(params).items()}
    found = {path: weight for path, weight in by_path(params).items() if kinds[path] in config.targets}
    if not found:
        there = ", ".join(sorted(set(kinds.values()) - {None}))
        raise ConfigError(f"lora.targets={list(config.targets)} name no weight of this network; it has {there}.")
    return found


def add(params: Params, config: LoRAConfig, *, seed: int) -> Params:
    """The same network, bit for bit, with an adapter beside every target: a uniform in +-1/sqrt(in), b = 0, float32."""

    def adapted(path: str, weight: jax.Array) -> LowRank:
        *experts, width, out = weight.shape
        key, bound = jax.random.key(derive(seed, path)), width**-0.5
        a = jax.random.uniform(key, (*experts, width, config.rank), minval=-bound, maxval=bound)
        return LowRank(weight, a, jnp.zeros((*experts, config.rank, out)), config.alpha / config.rank)

    return with_leaves(params, {path: adapted(path, weight) for path, weight in targets(params, config).items()})


def merge(params: Params) -> Params:
    """Plain params: every LowRank as base + scale * a @ b in the base's dtype."""
    return jax.tree.map(_merged, params, is_leaf=_is_low_rank)


def adapters(params: Params) -> dict[str, LowRank]:
    """path -> adapted weight."""
    return {path: leaf for path, leaf in by_path(params, is_leaf=_is_low_rank).items() if _is_low_rank(leaf)}


def is_adapter(path: str) -> bool:
    """True for the leaves a and b of an adapted weight."""
    return path.split("/")[-1] in ("a", "b")


def frozen(config: LoRAConfig) -> Callable[[str], bool] | None:
    """What a stage must not change: all but its adapters; None (nothing) for a stage without adapters."""
    return (lambda path: not is_adapter(path)) if config.rank > 0 else None


def _kind(path: str, weight: jax.Array) -> str | None:
    kind = KINDS.get(path.split("/")[-1])
    return "experts" if kind == "mlp" and weight.ndim == 3 else kind


def _merged(leaf: Any) -> Any:
    if not _is_low_rank(leaf):
        return leaf
    delta = jnp.matmul(leaf.a, leaf.b, precision=jax.lax.Precision.HIGHEST)
    return (leaf.base + leaf.scale * delta).astype(leaf.base.dtype)


def _is_low_rank(leaf: Any) -> bool:
    return isinstance(leaf, LowRank)
