"""Adapters: unchanged with b = 0, equal to the merged weights otherwise, in every path; gradients by the chain rule."""

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.config import ConfigError, LoRAConfig, ModelConfig
from cascade_jax.leaves import by_path, map_by_path
from cascade_jax.model import apply, lora
from cascade_jax.types import Params

ALL = LoRAConfig(rank=3, alpha=6.0, targets=("attention", "mamba", "mamba_out", "mlp", "experts"))
IDS = np.random.default_rng(2).integers(0, 61, (2, 11)).astype(np.int32)
PROMPT = 9


@pytest.fixture
def net(hybrid: ModelConfig) -> ModelConfig:
    """Every kind of matrix: all four layers, gates, a latent space for the experts."""
    return replace(hybrid, activation="swiglu", latent_width=20)


@pytest.fixture
def adapted(net: ModelConfig, weights: Callable[..., Params]) -> Params:
    """Adapters with a and b of such a size that they matter."""
    rng = np.random.default_rng(1)

    def one(path: str, leaf: jax.Array) -> jax.Array:
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        return jnp.asarray(0.5 * noise / leaf.shape[-2] ** 0.5 if lora.is_adapter(path) else leaf)

    return map_by_path(one, lora.add(weights(net), ALL, seed=0))


@functools.partial(jax.jit, static_argnums=0)
def all_paths(config: ModelConfig, params: Params) -> dict[str, jax.Array]:
    """Logits of the forward pass, of a prefill, and of tokens decoded after it."""
    out = {"forward": apply.logits(config, params, apply.hidden(config, params, IDS)[0])}
    cache = apply.empty_cache(config, *IDS.shape)
    out["prefill"], cache = apply.prefill(config, params, IDS, np.asarray([PROMPT, PROMPT], np.int32), cache)
    out["decode"], _ = apply.decode(config, params, IDS[:, PROMPT], cache)
    return out


def test_fresh_adapters_change_no_bit(net, weights):
    params = weights(net)
    fresh = lora.add(params, ALL, seed=0)
    assert sum(map(lora.is_adapter, by_path(fresh))) == 2 * len(lora.targets(params, ALL))
    jax.tree.map(np.testing.assert_array_equal, all_paths(net, fresh), all_paths(net, params))


def test_merged_equals_unmerged_on_every_path(net, adapted, weights):
    got, want = all_paths(net, adapted), all_paths(net, lora.merge(adapted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)
    np.testing.assert_allclose(got["decode"], got["forward"][:, PROMPT], atol=1e-5)
    assert np.abs(want["forward"] - all_paths(net, weights(net))["forward"]).max() > 0.1


def test_gradients_follow_from_those_of_the_merged_weights(net, adapted):
    """d loss / d a = scale * dW b', d loss / d b = scale * a' dW."""

    @jax.jit
    def gradient(params: Params) -> Params:
        return jax.grad(lambda p: (apply.hidden(net, p, IDS)[0] ** 3).mean())(params)

    got, whole = by_path(gradient(adapted)), by_path(gradient(lora.merge(adapted)))
    values = by_path(adapted)
    for path in lora.targets(lora.merge(adapted), ALL):
        a, b, dw = values[f"{path}/a"], values[f"{path}/b"], 2.0 * whole[path]
        size = np.abs(dw).max()
        np.testing.assert_allclose(got[f"{path}/a"], dw @ b.swapaxes(-1, -2), rtol=1e-3, atol=1e-5 * size)
        np.testing.assert_allclose(got[f"{path}/b"], a.swapaxes(-1, -2) @ dw, rtol=1e-3, atol=1e-5 * size)
        assert size > 0


def test_targets_by_kind(net, weights):
    names = {
        kind: {path.removeprefix("layers/") for path in lora.targets(weights(net), replace(ALL, targets=(kind,)))}
        for kind in ALL.targets
    }
    assert names == {
        "mamba": {f"0/mixer/{name}_proj" for name in ("z", "x", "B", "C", "dt")},
        "mamba_out": {"0/mixer/out_proj"},
        "experts": {f"1/mixer/{name}" for name in ("up", "down", "gate", "latent_in", "latent_out")},
        "attention": {f"2/mixer/{name}_proj" for name in "qkvo"},
        "mlp": {f"{at}/{name}" for at in ("1/mixer/shared", "3/mixer") for name in ("up", "down", "gate")},
    }


def test_targets_that_are_not_there(net, weights):
    only_mlp = replace(net, pattern="-")
    with pytest.raises(ConfigError, match=r"lora.targets=\['mamba'\] name no weight of this network; it has mlp"):
        lora.add(weights(only_mlp), replace(ALL, targets=("mamba",)), seed=0)


def test_seeds_and_scale(weights, net):
    one, same, other = (by_path(lora.add(weights(net), ALL, seed=seed)) for seed in (0, 0, 1))
    path = "layers/2/mixer/q_proj/a"
    assert (one[path] == same[path]).all() and (one[path] != other[path]).any()
    assert (one[path] != one["layers/2/mixer/k_proj/a"]).any()
    assert np.abs(one[path]).max() <= net.width**-0.5
    assert lora.add(weights(net), ALL, seed=0)["layers"]["2"]["mixer"]["q_proj"].scale == 2.0
