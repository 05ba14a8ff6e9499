"""Small networks with weights large enough that every part of them matters."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply
from cascade_jax.types import Params

SIZES = {
    "vocab_size": 61,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 12,
    "mamba_heads": 4,
    "mamba_head_dim": 8,
    "mamba_groups": 2,
    "state": 6,
    "chunk": 8,
    "experts": 6,
    "experts_per_token": 2,
    "expert_width": 16,
    "shared_expert_width": 24,
    "routed_scale": 2.5,
    "mlp_width": 40,
}

# One network per kind of layer, and one of everything.
KINDS = {
    "mamba": ModelConfig(pattern="M", **SIZES),
    "attention": ModelConfig(pattern="*", **SIZES),
    "rotary": ModelConfig(pattern="*", rope_theta=100.0, qk_norm=True, attention_bias=True, **SIZES),
    "experts": ModelConfig(pattern="E", **SIZES),
    "mlp": ModelConfig(pattern="-", activation="swiglu", **SIZES),
    "hybrid": ModelConfig(pattern="ME*-", **SIZES),
}


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """The network of each kind in turn."""
    return KINDS[request.param]


@pytest.fixture
def hybrid() -> ModelConfig:
    """The network of everything."""
    return KINDS["hybrid"]


@pytest.fixture
def weights() -> Callable[[ModelConfig, int], Params]:
    """(config, seed) -> params."""
    return random_weights


def random_weights(config: ModelConfig, seed: int = 0) -> Params:
    rng = np.random.default_rng(seed)

    def one(path: tuple[jax.tree_util.DictKey, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name, noise = path[-1].key, rng.standard_normal(leaf.shape)
        if "norm" in name:
            value = 1 + 0.2 * noise
        elif name == "A_log":
            value = np.log(rng.uniform(1, 16, leaf.shape))
        elif name == "dt_bias":
            value = np.log(np.expm1(rng.uniform(0.02, 0.3, leaf.shape)))
        elif "bias" in name:
            value = 0.3 * noise
        elif name in ("D", "embedding"):
            value = noise
        else:
            value = noise / np.sqrt(leaf.shape[-2])
        return value.astype(np.float32)

    return jax.tree_util.tree_map_with_path(one, apply.abstract(config))
