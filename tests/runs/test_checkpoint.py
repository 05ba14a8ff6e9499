"""Checkpoints: what is written comes back, retention keeps the newest, and a torn write never counts."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cascade_jax.checkpoint import latest_step, load_model, restore_state, save_model, save_state
from cascade_jax.config import ModelConfig
from cascade_jax.model import apply
from cascade_jax.types import TrainState

ROOT = Path(__file__).parents[2]
CONFIG = ModelConfig(vocab_size=16, width=8, pattern="*", head_dim=8)


def state(step: int) -> TrainState:
    params = {"w": jnp.full((3, 2), step, jnp.float32), "layers": {"0": {"b": step + jnp.arange(4.0)}}}
    return TrainState(params, optax.adamw(1e-3).init(params), jnp.asarray(step, jnp.int32))


def same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def test_a_state_and_its_position_come_back(tmp_path):
    position = {"stream": {"next_index": 7}, "waiting": [["math", 3]], "empty": [], "nested": {"none": None}}
    save_state(tmp_path, state(4), position)
    restored, found = restore_state(tmp_path, 4, state(0))
    assert found == position and same(restored, state(4))
    assert jax.tree.structure(restored) == jax.tree.structure(state(4))


def test_frozen_weights_are_left_out(tmp_path):
    frozen = lambda path: path == "w"  # noqa: E731
    save_state(tmp_path, state(4), {}, frozen=frozen)
    restored, _ = restore_state(tmp_path, 4, state(3), frozen=frozen)
    assert (restored.params["w"] == 3).all() and same(restored.params["layers"], state(4).params["layers"])
    assert same(restored.optimizer_state, state(4).optimizer_state) and restored.step == 4


def test_only_the_newest_two_are_kept(tmp_path):
    for step in (2, 4, 6, 10):
        save_state(tmp_path, state(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "6"]
    assert latest_step(tmp_path) == 10


def test_a_torn_write_is_cleared_away(tmp_path):
    save_state(tmp_path, state(2), {})
    (tmp_path / "4.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "final").mkdir()
    assert latest_step(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "final"]
    assert latest_step(tmp_path / "nothing") is None


def test_a_model_comes_back_with_its_config_and_tokenizer(tmp_path):
    params = apply.init(CONFIG, jax.random.key(0))
    (tmp_path / "some.model").write_bytes(b"pieces")
    for _ in range(2):  # the second one replaces the first
        save_model(tmp_path / "model", CONFIG, params, tokenizer=tmp_path / "some.model")
    config, loaded, tokenizer = load_model(tmp_path / "model")
    assert config == CONFIG and same(loaded, params)
    assert tokenizer.name == "tokenizer.model" and tokenizer.read_bytes() == b"pieces"


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no checkpoint"):
        load_model(tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "config.json").write_text('{"vocab_size": 16, "width": 8, "pattern": "?"}')
    with pytest.raises(ValueError, match="unknown letters"):
        load_model(tmp_path)


def test_what_eight_devices_wrote_loads_on_four_two_and_one(tmp_path):
    command = [sys.executable, "-m", "tests.runs.other_meshes", str(tmp_path)]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["4", "2", "1"]
