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
from pallas_kernels.ssd import tpu as ssd_tpu
from pallas_kernels.ssd.rows import prepare


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


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "blocks", lambda *_, **__: {"queries": 128, "keys": 128, "chunk": 128, "heads": 2})


@pytest.mark.parametrize("run", [attention, ssd])
def test_no_race(run: Callable) -> None:
    races, numbers = simulated(run)
    assert not races and numbers


@pytest.mark.parametrize("run", [attention, ssd])
def test_a_planted_race_is_found(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that forget which core they belong to."""
    block = pl.BlockSpec

    def forgetful(shape: tuple[int, ...], index: Callable) -> pl.BlockSpec:
        return block(shape, lambda core, *rest: index(0 * core, *rest))

    monkeypatch.setattr(pl, "BlockSpec", forgetful)
    assert simulated(run)[0]
