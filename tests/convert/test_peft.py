"""Adapter folders in `peft`, on models that transformers wrote: the same logits as unmerged here."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.config import LoRAConfig, ModelConfig
from cascade_jax.leaves import map_by_path
from cascade_jax.model import apply, lora
from cascade_jax.model.convert import CheckpointError, load_hf
from cascade_jax.model.convert.peft import save_adapter
from cascade_jax.types import Params
from tests.convert import reference

IDS = np.random.default_rng(0).integers(0, reference.VOCABULARY, (3, 21)).astype(np.int32)


def trained(folder: Path, settings: LoRAConfig) -> tuple[ModelConfig, Params]:
    """The network with adapters that are far from nothing."""
    config, params = load_hf(folder, dtype=jnp.float32)
    rng = np.random.default_rng(1)

    def one(path: str, leaf: jax.Array) -> jax.Array:
        if not lora.is_adapter(path):
            return leaf
        return jnp.asarray(rng.standard_normal(leaf.shape) / leaf.shape[-2] ** 0.5, jnp.float32)

    return config, map_by_path(one, lora.add(params, settings, seed=0))


# Mamba's in_proj is five weights of ours: its adapter has five times the rank of the others.
@pytest.mark.parametrize("name", ["llama", "nemotron"])
def test_peft_computes_the_same(written: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft")
    folder = written(name)
    config, params = trained(folder, LoRAConfig(rank=2, alpha=3.0))
    save_adapter(tmp_path / "adapter", config, params, base_model=str(folder))
    base = reference.load(folder)
    before = reference.logits(base, IDS)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert theirs.peft_config["default"].base_model_name_or_path == str(folder)
    run = jax.jit(lambda params: apply.logits(config, params, apply.hidden(config, params, IDS)[0]))
    want = reference.logits(theirs, IDS)
    np.testing.assert_allclose(run(params), want, atol=1e-4)
    assert np.abs(want - before).max() > 0.3


@pytest.mark.parametrize(("kind", "weight"), [("experts", "layers/1/mixer/down"), ("mamba_out", "layers/0/mixer/out")])
def test_what_peft_cannot_hold_is_refused(
    written: Callable[[str], Path], tmp_path: Path, kind: str, weight: str
) -> None:
    config, params = trained(written("nemotron"), LoRAConfig(rank=2, targets=("attention", kind)))
    with pytest.raises(CheckpointError, match=rf"PEFT holds no adapters .* \({weight}"):
        save_adapter(tmp_path / "adapter", config, params, base_model="x")
    assert not (tmp_path / "adapter").exists()
