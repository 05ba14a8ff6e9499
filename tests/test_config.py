"""Configs: what a file may say, and the one sentence for what it may not."""

import json

import pytest

from cascade_jax.config import CascadeConfig, ConfigError, ModelConfig, StageConfig, build, to_dict
from configs import tiny_cascade

STAGE = {"kind": "rl", "steps": 2, "domains": {"math": 1.0}, "length": 64}


def test_a_config_survives_json():
    config = build(CascadeConfig, tiny_cascade.get_config().to_dict())
    assert build(CascadeConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_an_unknown_key_is_named_with_the_likely_one():
    with pytest.raises(ConfigError, match=r"config\.stepz is not a setting; did you mean steps\?"):
        build(StageConfig, {**STAGE, "stepz": 3})


def test_a_nested_unknown_key_is_named_by_its_path():
    with pytest.raises(ConfigError, match=r"config\.optimizer\.learning_rat is not a setting"):
        build(StageConfig, {**STAGE, "optimizer": {"learning_rat": 1.0}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0 must be positive"),
        ({"steps": "ten"}, "config.steps='ten' is a str; a int is needed"),
        ({"kind": "dpo"}, "choose one of 'sft', 'rl', 'distill'"),
        ({"domains": {}}, "at least one domain"),
        ({"domains": {"math": 0.0}}, "must be positive"),
        ({"kind": "distill"}, r"no teacher is named for the domains \['math'\]"),
        ({"sampling": {"top_p": 0.0}}, r"top_p=0.0 must be in \(0, 1\]"),
        ({"rl": {"band": [0.5]}}, "must have 2 entries"),
        ({"length": 0}, "length=0 must be positive"),
        ({"micro_batches": 0}, "micro_batches=0 must be positive"),
        ({"checkpoint_every": -1}, "checkpoint_every=-1 must be positive"),
        ({"sft": {"rows": 0}}, r"sft\.rows=0 must be positive"),
        ({"rl": {"prompts": 0}}, r"rl\.prompts=0 must be positive"),
        ({"rl": {"samples": -2}}, r"rl\.samples=-2 must be positive"),
        ({"rl": {"max_draws": 0}}, r"rl\.max_draws=0 must be positive"),
        ({"distill": {"prompts": 0}}, r"distill\.prompts=0 must be positive"),
        ({"distill": {"samples": 0}}, r"distill\.samples=0 must be positive"),
        ({"lora": {"rank": -1}}, r"lora\.rank=-1 must not be negative"),
        ({"rl": {"kl_coef": 0.1}, "sampling": {"top_p": 0.9}}, "compares whole distributions"),
    ],
)
def test_a_value_that_is_not_allowed_is_one_sentence(changes, message):
    with pytest.raises(ConfigError, match=message):
        build(StageConfig, {**STAGE, **changes})


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"config\.steps is missing"):
        build(StageConfig, {k: v for k, v in STAGE.items() if k != "steps"})


def test_whole_numbers_are_fine_for_floats_but_truth_values_are_not_for_numbers():
    assert build(StageConfig, {**STAGE, "optimizer": {"learning_rate": 1}}).optimizer.learning_rate == 1.0
    with pytest.raises(ConfigError, match="is a bool"):
        build(StageConfig, {**STAGE, "steps": True})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "MX"}, r"unknown letters \['X'\]"),
        ({"pattern": ""}, "pattern is empty"),
        ({"pattern": "*" * 8193}, "8193 letters; allowed are up to 8192"),
        ({"vocab_size": 0}, "vocab_size=0 is out of range"),
        ({"width": 2**31}, "width=2147483648 is out of range; choose from 1 to 2147483647"),
        ({"heads": 0}, "heads=0 is out of range"),
        ({"heads": 3, "kv_heads": 2}, "heads=3 is not a multiple of kv_heads=2"),
        ({"head_dim": 7, "rope_theta": 1e4}, "head_dim=7 is odd"),
        ({"rope_theta": 0.0}, "rope_theta=0.0 is out of range"),
        ({"norm_eps": float("nan")}, "norm_eps=nan is out of range"),
        ({"norm_eps": 0.0}, "norm_eps=0.0 is out of range"),
        ({"routed_scale": float("inf")}, "routed_scale=inf is out of range"),
        ({"initializer_range": -0.1}, "initializer_range=-0.1 is out of range"),
        ({"latent_width": -1}, "latent_width=-1 is out of range"),
        ({"pattern": "-", "mlp_width": 0}, "mlp_width=0 is out of range"),
        ({"pattern": "M", "chunk": 0}, "chunk=0 is out of range"),
        ({"pattern": "M", "state": -1}, "state=-1 is out of range"),
        ({"pattern": "M", "mamba_heads": 3, "mamba_groups": 2}, "mamba_heads=3 is not a multiple of mamba_groups=2"),
        ({"time_step_limit": (1.0, 0.5)}, r"time_step_limit=\[1.0, 0.5\] is no range"),
        ({"pattern": "E", "expert_width": 0}, "expert_width=0 is out of range"),
        ({"pattern": "E", "experts": 65_537}, "experts=65537 is out of range; choose from 1 to 65536"),
        ({"pattern": "E", "experts": 2, "experts_per_token": 3}, "experts_per_token=3 must be between 1 and experts=2"),
        ({"pattern": "E", "experts": 4, "router_groups": 3}, "experts=4 is not a multiple of router_groups=3"),
        ({"pattern": "E", "experts": 4, "router_groups": 4}, "router_groups=4 leaves 1 of experts=4 in a group"),
        ({"pattern": "E", "experts": 4, "router_groups": 0}, "router_groups=0 is out of range"),
        (
            {"pattern": "E", "experts": 4, "router_groups": 2, "router_top_groups": 3},
            "must be between 1 and router_group",
        ),
        ({"pattern": "E", "experts": 4, "router_groups": 2, "experts_per_token": 3}, "more than the 2 experts of"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**{"vocab_size": 8, "width": 8, "pattern": "*", "expert_width": 8, "mlp_width": 8, **changes})
