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
        ({"heads": 3, "kv_heads": 2}, "heads=3 is not a multiple of kv_heads=2"),
        ({"pattern": "E", "experts": 2, "experts_per_token": 3}, "experts_per_token=3 must be between 1 and experts=2"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**{"vocab_size": 8, "width": 8, "pattern": "*", **changes})
