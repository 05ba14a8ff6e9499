"""Folders of all four families, written by transformers: the same logits, greedy tokens and gradients."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.config import ModelConfig, SamplingConfig
from cascade_jax.model import apply
from cascade_jax.model.convert import load_hf, save_hf
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.types import Params, Prompt, Row
from tests.convert import reference
from tests.convert.files import read_folder

PROMPT, TOKENS = 9, 64
IDS = np.random.default_rng(0).integers(0, reference.VOCABULARY, (2, PROMPT + TOKENS)).astype(np.int32)
DECODED = ("nemotron", "qwen3")  # with the engine too, which compiles more; between them they have all there is


class Pair(NamedTuple):
    """A folder, and what it is in transformers and here, in float32."""

    name: str
    folder: Path
    theirs: Any
    config: ModelConfig
    params: Params
    logits: np.ndarray
    gradients: Params


@functools.partial(jax.jit, static_argnums=0)
def forward_and_back(config: ModelConfig, params: Params, ids: jax.Array) -> tuple[jax.Array, Params]:
    """The logits, and the gradient of the mean log-prob of the next id."""

    def mean_logprob(params: Params) -> tuple[jax.Array, jax.Array]:
        logits = apply.logits(config, params, apply.hidden(config, params, ids)[0])
        logprobs = jax.nn.log_softmax(logits[:, :-1])
        return jnp.take_along_axis(logprobs, ids[:, 1:, None], -1).mean(), logits

    gradients, logits = jax.grad(mean_logprob, has_aux=True)(params)
    return logits, gradients


@pytest.fixture(scope="module", params=reference.NETS)
def pair(request: pytest.FixtureRequest, written: Callable[[str], Path]) -> Pair:
    folder = written(request.param)
    config, params = load_hf(folder, dtype=jnp.float32)
    logits, gradients = forward_and_back(config, params, jnp.asarray(IDS))
    return Pair(request.param, folder, reference.load(folder), config, params, np.asarray(logits), gradients)


def test_logits(pair: Pair) -> None:
    want = reference.logits(pair.theirs, IDS)
    assert want.std() > 0.3
    np.testing.assert_allclose(pair.logits, want, atol=1e-4, rtol=0)


def test_greedy_tokens(pair: Pair) -> None:
    """Where each of their tokens is our most likely one after those before it, greedy decoding gives the same."""
    prompts = IDS[:, :PROMPT]
    want = reference.greedy(pair.theirs, prompts, TOKENS)
    assert want.shape == (2, TOKENS)
    assert all(len(set(row)) > 8 for row in want.tolist())  # no loop of a few tokens, in which little could differ
    logits, _ = forward_and_back(pair.config, pair.params, jnp.asarray(np.concatenate([prompts, want], axis=1)))
    np.testing.assert_array_equal(logits.argmax(-1)[:, PROMPT - 1 : -1], want)
    if pair.name in DECODED:
        row = Row(id="0", kind="text", messages=())
        groups = LocalEngine(pair.config, pair.params, stop_ids=(), buckets=(16,)).generate(
            [Prompt(ids, row, "test") for ids in prompts],
            SamplingConfig(temperature=0.0, max_tokens=TOKENS),
            samples_per_prompt=1,
            seed=0,
        )
        np.testing.assert_array_equal([group.samples[0].ids for group in groups], want)


def test_gradients(pair: Pair, tmp_path: Path) -> None:
    """Both sides' gradients are written down like weights, and compared name by name."""
    theirs = read_folder(reference.gradients(reference.load(pair.folder), IDS, tmp_path / "theirs"))
    save_hf(tmp_path / "ours", pair.config, pair.gradients)
    ours = read_folder(tmp_path / "ours")
    if pair.config.tied_embeddings:
        ours.pop("lm_head.weight", None)  # written twice for NemotronH in transformers, which does not tie
    assert {name: tensor[:2] for name, tensor in ours.items()} == {name: t[:2] for name, t in theirs.items()}
    for name, (dtype, _, data) in theirs.items():
        assert dtype == "F32"
        want, got = np.frombuffer(data, np.float32), np.frombuffer(ours[name][2], np.float32)
        largest = np.abs(want).max()
        assert largest > 0 or "expert" in name or name.endswith("e_score_correction_bias"), name
        assert np.abs(got - want).max() <= 1e-4 * largest, name


def test_stored_dtypes_are_kept_unless_another_is_asked_for(pair: Pair) -> None:
    config, params = load_hf(pair.folder)
    assert config == pair.config
    _, stored, _ = reference.NETS[pair.name]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {stored, "float32"}  # float32: the router's
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a).astype(np.float32), b), params, pair.params)
