"""Two small networks whose logits are far enough from uniform to tell tokens apart, and their plain forward pass."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply, presets
from cascade_jax.types import Params, Prompt, Row

LLAMA = ModelConfig(
    vocab_size=97,
    width=32,
    pattern="*-",
    heads=4,
    kv_heads=2,
    head_dim=8,
    rope_theta=10000.0,
    mlp_width=64,
    activation="swiglu",
    tied_embeddings=True,
)
HYBRID = dataclasses.replace(presets.get("tiny"), pattern="M*E")
CONFIGS = {"hybrid": HYBRID, "llama": LLAMA}


def random_params(config: ModelConfig, *, seed: int = 0) -> Params:
    """Every weight at random, norms about 1; much faster than `apply.init`, which compiles a program."""
    rng = np.random.default_rng(seed)

    def leaf(path: tuple, like: jax.ShapeDtypeStruct) -> jax.Array:
        noise = 0.1 * rng.standard_normal(like.shape)
        return jnp.asarray(1 + noise if "norm" in jax.tree_util.keystr(path[-1:]) else noise, like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, apply.abstract(config))


PARAMS = {name: random_params(config) for name, config in CONFIGS.items()}


@pytest.fixture(params=list(CONFIGS))
def network(request):
    """(config, params) of both kinds in turn."""
    return CONFIGS[request.param], PARAMS[request.param]


@pytest.fixture
def hybrid():
    return HYBRID, PARAMS["hybrid"]


@pytest.fixture
def llama():
    return LLAMA, PARAMS["llama"]


def random_ids(config: ModelConfig, lengths: list[int], *, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, config.vocab_size, n, dtype=np.int32) for n in lengths]


def padded(prompts: list[np.ndarray], bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """ids (P, bucket) and lengths (P,); what stands behind a prompt must not matter, so it is not 0."""
    ids = np.full((len(prompts), bucket), 3, np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    return ids, np.array([len(prompt) for prompt in prompts], np.int32)


@partial(jax.jit, static_argnums=0)
def _forward(config: ModelConfig, params: Params, ids: jax.Array, segments: jax.Array) -> jax.Array:
    return apply.logits(config, params, apply.hidden(config, params, ids, segments)[0])


def full_logits(network: tuple[ModelConfig, Params], ids: np.ndarray, *, length: int = 24) -> np.ndarray:
    """(T, V) of one sequence of up to `length` tokens, by the trainer's forward pass without any cache."""
    row, lengths = padded([np.asarray(ids)], length)
    segments = (jnp.arange(length) < lengths[:, None]).astype(jnp.int32)
    return np.asarray(_forward(*network, row, segments), np.float64)[0, : len(ids)]


def slow_distribution(
    logits: np.ndarray, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> np.ndarray:
    """(V,) probabilities after temperature, top-k, top-p, one token after the other."""
    p = np.exp((logits - logits.max()) / temperature)
    kept = np.argsort(-p)[: top_k or len(p)]
    mass, chosen = 0.0, []
    for token in kept:
        if mass >= top_p:
            break
        chosen.append(token)
        mass += p[token] / p[kept].sum()
    cut = np.zeros_like(p)
    cut[chosen] = p[chosen]
    return cut / cut.sum()


def as_prompt(ids: np.ndarray, domain: str = "math") -> Prompt:
    return Prompt(ids=ids, row=Row(id="0", kind="math", messages=()), domain=domain)
