"""Layers in a loop are layers one by one, whatever is computed again; sums and rows are those of the plain way."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply, stack
from cascade_jax.model.dispatch import inverse, running_sums
from cascade_jax.model.embedding import lookup
from cascade_jax.model.presets import get
from cascade_jax.types import Params

IDS = np.random.default_rng(0).integers(0, 61, (2, 24)).astype(np.int32)
SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 3, (2, 24)), axis=1).astype(np.int32)


@pytest.mark.parametrize(
    ("pattern", "unit", "count"),
    [
        (get("nemotron-3-nano-30b-a3b").pattern, "M*E", 23),
        (get("smollm2-135m").pattern, "*-", 30),
        (get("tiny").pattern, "M*E", 2),
        ("MMMM", "M", 4),
        ("M-M-MM-M*-", "M*-", 5),
        ("E", "E", 1),
    ],
)
def test_a_pattern_is_repeats_of_one_unit(pattern: str, unit: str, count: int) -> None:
    found, parts = stack.repeats(pattern)
    assert (found, len(parts), "".join(parts)) == (unit, count, pattern)
    for part in parts:
        assert [letter for letter in unit if letter in part] == list(part)


def gradient(config: ModelConfig, params: Params) -> tuple[jax.Array, apply.Aux, Params]:
    def value(params: Params) -> tuple[jax.Array, apply.Aux]:
        hidden, aux = apply.hidden(config, params, IDS, SEGMENTS, expert_ids=True)
        return (hidden**3).mean() + aux.balance_loss.mean, aux

    (total, aux), grads = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    return total, aux, grads


def test_a_loop_of_layers_is_the_layers_one_by_one(
    hybrid: ModelConfig, weights: Callable[[ModelConfig, int], Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention, experts and the MLP stand in some repeats only; experts in the first and in the last."""
    config = dataclasses.replace(hybrid, pattern="MEM*EM-E", remat="none")
    params = weights(config, 3)
    with monkeypatch.context() as patch:
        patch.setattr(stack, "FEWEST_REPEATS", 99)
        expected = gradient(config, params)
    for remat in ("layer", "unit"):
        found = gradient(dataclasses.replace(config, remat=remat), params)
        for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            scale = max(float(np.abs(other).max()), 1e-6)
            np.testing.assert_allclose(value, other, rtol=0, atol=2e-5 * scale)


def test_what_is_computed_again_takes_less_memory(
    hybrid: ModelConfig, weights: Callable[[ModelConfig, int], Params]
) -> None:
    config = dataclasses.replace(hybrid, pattern="M*-" * 4)
    params, ids = weights(config, 0), jnp.zeros((4, 256), jnp.int32)

    def scratch(remat: str) -> int:
        net = dataclasses.replace(config, remat=remat)
        grads = jax.jit(jax.grad(lambda params: apply.hidden(net, params, ids)[0].sum()))
        return grads.lower(params).compile().memory_analysis().temp_size_in_bytes

    none, layer = scratch("none"), scratch("layer")
    assert layer < 0.5 * none, f"{layer} against {none} bytes"


@pytest.mark.parametrize("rows", [1, 7, 256, 700])
def test_running_sums_are_a_cumsum(rows: int) -> None:
    counts = np.random.default_rng(rows).integers(0, 9, (5, rows)).astype(np.int32)
    np.testing.assert_array_equal(running_sums(counts), np.cumsum(counts, 1))


def test_the_inverse_of_places() -> None:
    np.testing.assert_array_equal(inverse(jnp.array([4, 0, 9, 2, 9]), 5), [1, 5, 3, 5, 0])


@pytest.mark.parametrize(("vocabulary", "count"), [(61, 40), (300, 513), (1000, 3)])
def test_rows_of_an_embedding_and_their_gradient(vocabulary: int, count: int) -> None:
    """Against a product with one-hot rows; an id outside has no row, as with a vocabulary that devices share."""
    rng = np.random.default_rng(count)
    table, dy = rng.standard_normal((vocabulary, 8)), rng.standard_normal((count, 8))
    ids = rng.integers(-5, vocabulary + 5, count)
    one_hot = np.float64(ids[:, None] == np.arange(vocabulary))
    rows, pull = jax.vjp(lambda table: lookup(table, jnp.array(ids)), jnp.float32(table))
    np.testing.assert_allclose(rows, one_hot @ table, rtol=1e-6)
    np.testing.assert_allclose(pull(jnp.float32(dy))[0], one_hot.T @ dy, rtol=1e-4, atol=1e-5)


def test_no_gradient_scatters_rows(hybrid: ModelConfig, weights: Callable[[ModelConfig, int], Params]) -> None:
    """Scatters of numbers into a vector are left; of rows they are slow on a TPU, to compile and to run."""
    params = weights(hybrid, 0)
    grads = jax.jit(jax.grad(lambda params: apply.hidden(hybrid, params, IDS, SEGMENTS)[0].sum()))
    jaxpr = str(jax.make_jaxpr(grads)(params))
    for line in jaxpr.splitlines():
        if "= scatter" in line:
            assert "[" in line and line.partition("=")[0].split("[")[1].count(",") == 0, line
