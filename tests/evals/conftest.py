"""A tiny checkpoint with random weights, and rows whose instructions some random texts follow."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.checkpoint import save_model
from cascade_jax.config import ModelConfig
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.model import apply

ROWS = 20


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = train_tokenizer(folder / "tokenizer.model")
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
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
    rng = np.random.default_rng(0)

    def leaf(path, like):
        noise = 0.3 * rng.standard_normal(like.shape)
        return jnp.asarray(1 + noise if "norm" in jax.tree_util.keystr(path[-1:]) else noise, like.dtype)

    params = jax.tree_util.tree_map_with_path(leaf, apply.abstract(config))
    save_model(folder / "final", config, params, tokenizer=tokenizer.path)
    return folder / "final"


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    records = [
        {
            "id": f"row-{i}",
            "prompt": "red " * (i % 9 + 1) + str(i),
            "instruction_id_list": ["punctuation:no_comma", "keywords:letter_frequency"],
            "kwargs": [{}, {"letter": "e", "let_frequency": 1, "let_relation": "at least"}],
            "part": "odd" if i % 2 else "even",
        }
        for i in range(ROWS)
    ]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file
