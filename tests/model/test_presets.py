"""Parameter counts, initial values, and where the mesh puts weights."""

import functools
from dataclasses import replace

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from cascade_jax.config import ConfigError
from cascade_jax.mesh import make_mesh, shardings
from cascade_jax.model import apply, presets


def count(name: str) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(apply.abstract(presets.get(name))))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("nemotron-3-nano-30b-a3b", 31_577_937_344 + 2_944),  # HF's count, and its router buffers
        ("smollm2-135m", 134_515_008),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_parameter_counts(name, parameters):
    assert count(name) == parameters


def test_tiny_is_small_and_has_every_part_of_the_hybrid():
    assert count("tiny") < 500_000
    assert {"M", "E", "*"} <= set(presets.get("tiny").pattern)


def test_unknown_preset():
    with pytest.raises(ConfigError, match="model='tinny' is not a preset; choose one of tiny, nemotron-3-nano"):
        presets.get("tinny")


def test_initial_values():
    config = presets.get("tiny")
    params = apply.init(config, jax.random.key(0))
    assert jax.tree.structure(params) == jax.tree.structure(apply.abstract(config))
    mixer = params["layers"][str(config.pattern.index("M"))]["mixer"]
    dt = jax.nn.softplus(mixer["dt_bias"])
    assert (dt >= 1e-3 - 1e-7).all() and (dt <= 0.1 + 1e-6).all()
    assert (mixer["A_log"] >= 0).all() and (mixer["A_log"] <= np.log(16)).all()
    bound = (config.mamba_width * len(config.pattern)) ** -0.5
    assert 0.95 * bound < jnp.abs(mixer["out_proj"]).max() <= bound
    np.testing.assert_allclose(params["embedding"].std(), config.initializer_range, rtol=0.02)
    assert not (params["layers"]["0"]["norm"] - 1).any()
    again = apply.init(config, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    other = apply.init(config, jax.random.key(1))
    assert np.abs(params["embedding"] - other["embedding"]).max() > 0.01


def test_bfloat16_is_near_float32(hybrid, weights):
    params = weights(hybrid, 0)
    ids = np.random.default_rng(0).integers(0, hybrid.vocab_size, (2, 24)).astype(np.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def log_probs(config):
        hidden, _ = apply.hidden(config, params, ids)
        logits = apply.logits(config, params, hidden)
        assert logits.dtype == jnp.float32
        assert hidden.dtype == config.dtype
        return jax.nn.log_softmax(logits)

    exact, rounded = log_probs(hybrid), log_probs(replace(hybrid, dtype="bfloat16"))
    kl = (jnp.exp(exact) * (exact - rounded)).sum(-1).mean()
    assert 0 < kl < 0.01


def test_graph_mode_and_tree_mode_of_flax_agree(hybrid, weights):
    params = weights(hybrid, 1)
    ids = np.arange(20, dtype=np.int32).reshape(2, 10)
    results = []
    for graph in (True, False):
        apply._declared.cache_clear()
        with nnx.set_graph_mode(graph):
            results.append(jax.jit(lambda params: apply.hidden(hybrid, params, ids)[0])(params))
    apply._declared.cache_clear()
    np.testing.assert_array_equal(*results)


def test_every_weight_has_a_place_on_the_mesh():
    config = presets.get("nemotron-3-nano-30b-a3b")
    mesh = make_mesh()
    assert mesh.axis_names == ("slice", "data", "fsdp", "expert", "tensor", "context")
    axes = apply.logical_axes(config)
    placed = shardings(axes, mesh)
    leaves, weights = jax.tree.leaves(placed), jax.tree.leaves(apply.abstract(config))
    assert [len(leaf.spec) for leaf in leaves] == [weight.ndim for weight in weights]
    assert placed["layers"]["1"]["mixer"]["up"].spec == PartitionSpec("expert", ("fsdp", "context"), "tensor")
    assert jax.device_put(jnp.ones((4, 2)), placed["embedding"]).sharding.mesh == mesh


def test_mesh_of_the_wrong_size():
    with pytest.raises(ValueError, match=r"fsdp 64 .*needs 64 devices and there are \d+\."):
        make_mesh(fsdp=64)
