"""The TPU kernels in the simulator: two cores, memory full of NaN, races looked for."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import tuning
from pallas_kernels.attention import tpu as attention_tpu
from pallas_kernels.attention.visibility import Visibility
from pallas_kernels.grouped_matmul import tpu as grouped_tpu
from pallas_kernels.grouped_matmul import work_list
from pallas_kernels.ssd import tpu as ssd_tpu
from pallas_kernels.ssd.rows import prepare
from pallas_kernels.token_logprob import tpu as logprob_tpu
from pallas_kernels.token_logprob.api import Slopes


def simulated(run: Callable) -> tuple[bool, bool]:
    """Runs the kernels: whether one core touched what another was writing, and whether all they write is numbers."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call  # there is no public way to ask

    simulator = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=2)
    numbers = [np.isfinite(np.asarray(array, np.float32)).all() for array in jax.tree.leaves(run(simulator))]
    return interpret_pallas_call.races.races_found, all(numbers)


def attention(simulator: pltpu.InterpretParams) -> tuple:
    """Both kv heads, one on each core."""
    q, k = (
        jax.random.normal(jax.random.key(0), (1, 128, 4, 128)),
        jax.random.normal(jax.random.key(1), (1, 256, 2, 128)),
    )
    segments = jnp.repeat(jnp.asarray([[1, 2]]), 128, axis=1)
    seen = Visibility(jnp.arange(128)[None] + 128, segments[:, 64:192], segments)
    out, lse = attention_tpu.forward(q, k, k, seen, 0.1, interpret=simulator)
    gradients = attention_tpu.backward(
        q, k, k, out, lse, (out * out).sum(-1), seen, 0.1, dtype=jnp.float32, interpret=simulator
    )
    return out, lse, gradients


def ssd(simulator: pltpu.InterpretParams) -> tuple:
    """Both rows, one on each core, in two chunks."""
    x = jax.random.normal(jax.random.key(0), (2, 256, 8, 16))
    B = jax.random.normal(jax.random.key(1), (2, 256, 1, 128))
    segments = jnp.repeat(jnp.asarray([[1, 2], [1, 1]]), 128, axis=1)
    rows = prepare(x, jnp.full((2, 256, 8), 0.1), -jnp.ones(8), B, B, segments, segments[:, 0], chunk=128)
    y, final, states = ssd_tpu.forward(rows, jnp.zeros((2, 8, 16, 128)), 128, keep_states=True, interpret=simulator)
    gradients = ssd_tpu.backward(rows, states, y, final, 128, interpret=simulator)
    return y, final, gradients


def experts(simulator: pltpu.InterpretParams) -> tuple:
    """Two tiles of columns, one on each core; an empty group, and a tile that two groups share."""
    x = jax.random.normal(jax.random.key(0), (40, 256))
    weight = jax.random.normal(jax.random.key(1), (3, 256, 256))
    plan = work_list(jnp.asarray([20, 0, 12]), rows=40, tile=16, aligned=True)
    settings = {"activation": None, "row_weight_M": None, "interpret": simulator}
    y = grouped_tpu.forward(x, weight, plan, transposed=False, **settings)
    dx = grouped_tpu.forward(y, weight, plan, transposed=True, **settings)
    return y, dx, grouped_tpu.weight_gradient(x, y, plan, jnp.float32, interpret=simulator)


def vocabulary(simulator: pltpu.InterpretParams) -> tuple:
    """Two tiles of tokens, one on each core; a vocabulary that ends inside its second tile."""
    hidden = jax.random.normal(jax.random.key(0), (32, 128))
    head = jax.random.normal(jax.random.key(1), (128, 200))
    ids = jnp.arange(32)[:, None] * 6
    found = logprob_tpu.statistics(hidden, head, ids, 0.7, interpret=simulator)
    flat = jnp.full(32, 0.5)
    slopes = Slopes(found.top_T + jnp.log(found.mass_T), flat, flat, flat[:, None])
    return found, logprob_tpu.gradients(hidden, head, ids, slopes, 0.7, interpret=simulator)


SIZES = {
    **dict.fromkeys(("queries", "keys", "chunk", "columns", "columns_transposed", "gradient_rows"), 128),
    **{
        "gradient_columns": 128,
        "inside": 16,
        "gradient_inside": 16,
        "rows": 16,
        "vmem_mib": 16,
        "cores": 1,
        "heads": 2,
    },
    "part_logits": 4096,
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tuning, grouped_tpu, logprob_tpu):
        monkeypatch.setattr(module, "blocks", lambda *_, **__: SIZES)


@pytest.mark.parametrize("run", [attention, ssd, experts, vocabulary])
def test_no_race(run: Callable) -> None:
    races, numbers = simulated(run)
    assert not races and numbers


@pytest.mark.parametrize("run", [attention, ssd, experts, vocabulary])
def test_a_planted_race_is_found(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that forget which core they belong to."""
    block = pl.BlockSpec

    def forgetful(shape: tuple[int, ...], index: Callable) -> pl.BlockSpec:
        return block(shape, lambda core, *rest: index(0 * core, *rest))

    monkeypatch.setattr(pl, "BlockSpec", forgetful)
    assert simulated(run)[0]
