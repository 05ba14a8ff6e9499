"""Grouped matmul against float64: values and gradients of every implementation, at awkward group sizes."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul import gpu, reference, tpu, work_list, xla
from pallas_kernels.grouped_matmul.api import product
from tests.kernels.errors import exact, largest, ratios, with_gradients
from tests.kernels.interpreted import interpreted

GROUPS = {
    "uneven": (70, [13, 0, 41, 16]),
    "rows_behind": (64, [5, 0, 0, 30]),
    "one_has_all": (48, [0, 48, 0]),
    "whole_tiles": (64, [16, 32, 16]),
    "one_row": (1, [0, 1]),
    "no_row": (16, [0, 0]),
    "many_small": (90, [3, 1, 0, 7, 2, 9, 1, 1, 4, 0, 5, 8, 1, 2, 6, 3]),
}
VARIANTS = {
    "transposed": {"transposed": True},
    "relu2": {"activation": "relu2"},
    "row_weight": {"row_weighted": True},
}


def backends():
    return {"xla": xla, "reference": reference, "tpu": interpreted(tpu), "gpu": interpreted(gpu)}


def case(rows, sizes, dtype, *, width=24, out=40, transposed=False, activation=None, row_weighted=False, aligned=False):
    """(function of a back-end, arguments, cotangents)."""
    rng = np.random.default_rng(rows + len(sizes))
    shape = (len(sizes), out, width) if transposed else (len(sizes), width, out)
    x, w, dy = rng.normal(size=(rows, width)), rng.normal(size=shape), rng.normal(size=(rows, out))
    arguments = [jnp.asarray(x, dtype), jnp.asarray(w, dtype)]
    if row_weighted:
        arguments.append(jnp.asarray(rng.uniform(0.1, 1, size=rows), jnp.float32))

    def run(backend, x, w, row_weight=None):
        plan = work_list(jnp.asarray(sizes, jnp.int32), rows=rows, tile=16, aligned=aligned)
        return (product(x, w, row_weight, plan, transposed, activation, backend),)

    def definition(x, w, row_weight=None):
        plan = work_list(jnp.asarray(sizes, jnp.int32), rows=rows, tile=16)
        return (reference.forward(x, w, plan, transposed=transposed, activation=activation, row_weight_M=row_weight),)

    return run, definition, arguments, [jnp.asarray(dy, dtype)]


@pytest.mark.parametrize("name", backends())
@pytest.mark.parametrize(("groups", "variant"), [*((g, "plain") for g in GROUPS), *(("uneven", v) for v in VARIANTS)])
def test_float32(name, groups, variant):
    run, definition, arguments, cotangents = case(
        *GROUPS[groups], jnp.float32, aligned=name == "tpu", **VARIANTS.get(variant, {})
    )
    truth = exact(definition, arguments, cotangents)
    found = with_gradients(functools.partial(run, backends()[name]), arguments, cotangents)
    assert largest(found, truth) < 2e-5


@pytest.mark.parametrize("name", ["tpu", "gpu"])
@pytest.mark.parametrize("variant", [{}, *VARIANTS.values()])
def test_bfloat16_is_as_good_as_xla(name, variant):
    run, definition, arguments, cotangents = case(*GROUPS["uneven"], jnp.bfloat16, aligned=name == "tpu", **variant)
    truth = exact(definition, arguments, cotangents)
    ours, others = (
        with_gradients(functools.partial(run, backends()[of]), arguments, cotangents) for of in (name, "xla")
    )
    assert max(ratios(ours, others, truth)) < 1.5
