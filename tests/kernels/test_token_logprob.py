"""Log-probs, entropy and both gradients against float64, of every implementation."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tuning
from pallas_kernels.token_logprob import gpu, reference, tpu, xla
from pallas_kernels.token_logprob.api import logprobs
from tests.kernels.errors import exact, largest, ratios, with_gradients
from tests.kernels.interpreted import interpreted

SHAPES = {  # tokens, width, vocabulary, ids of a token
    "even": (32, 16, 512, 1),
    "odd": (37, 24, 1003, 1),
    "one_token": (1, 8, 77, 2),
    "two_ids": (10, 8, 300, 2),
    "many_ids": (19, 8, 1003, 9),
}


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch):
    """Parts so small that even these vocabularies have several."""
    monkeypatch.setattr(
        tuning,
        "_table",
        lambda operation: {
            "default": {"part_logits": 1, "rows": 16, "columns": 256, "inside": 8, "vmem_mib": 16}
            | {"depth": 8, "shares": 3, "warps": 4, "stages": 1},
            "devices": {},
        },
    )


def case(shape, dtype, temperature=1.0):
    T, D, V, J = SHAPES[shape]
    rng = np.random.default_rng(T + V)
    hidden, head = rng.normal(size=(T, D)), 2 * rng.normal(size=(D, V)) / np.sqrt(D)
    ids = rng.integers(V, size=(T, J))
    ids[:, -1] = ids[:, 0]  # one id twice
    cotangents = [rng.normal(size=(T, J)), rng.normal(size=T)]

    def definition(hidden, head):
        return reference.logprobs(hidden, head, jnp.asarray(ids), temperature)

    def run(backend, hidden, head):
        return logprobs(hidden, head, jnp.asarray(ids), temperature, None, backend)

    return (
        run,
        definition,
        [jnp.asarray(a, dtype) for a in (hidden, head)],
        [jnp.asarray(c, jnp.float32) for c in cotangents],
    )


def backends():
    return {"xla": xla, "reference": reference, "tpu": interpreted(tpu), "gpu": interpreted(gpu)}


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize("shape", SHAPES)
def test_float32(name, shape):
    run, definition, arguments, cotangents = case(shape, jnp.float32, temperature=0.7)
    truth = exact(definition, arguments, cotangents)
    found = with_gradients(functools.partial(run, backends()[name]), arguments, cotangents)
    assert largest(found, truth) < 2e-5


@pytest.mark.parametrize("name", ["tpu", "gpu"])
def test_bfloat16_is_as_good_as_xla(name):
    run, definition, arguments, cotangents = case("odd", jnp.bfloat16)
    truth = exact(definition, arguments, cotangents)
    ours, others = (
        with_gradients(functools.partial(run, backends()[of]), arguments, cotangents) for of in (name, "xla")
    )
    assert max(ratios(ours, others, truth)) < 1.5
