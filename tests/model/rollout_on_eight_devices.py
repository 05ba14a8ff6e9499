"""What test_eight_devices.py runs: samples that are drawn on meshes of eight devices are those of one device."""

import jax
import numpy as np
import pytest

from cascade_jax.config import MeshConfig
from cascade_jax.mesh import use
from cascade_jax.model import apply
from cascade_jax.rollout.sampler import Drawn, sample
from cascade_jax.types import Params
from tests.model.conftest import random_weights
from tests.model.mesh_on_eight_devices import NETS

LENGTHS = np.array([5, 9, 3, 0, 7, 4, 8, 6], np.int32)  # 0: a row that only fills the batch


def drawn(params: Params, *, greedy: bool) -> Drawn:
    ids = np.random.default_rng(0).integers(0, 64, (8, 9)).astype(np.int32)
    return sample(
        NETS["hybrid"],
        params,
        ids,
        LENGTHS,
        key=jax.random.key(1),
        index_P=np.arange(8, dtype=np.int32),
        samples_per_prompt=2,
        max_tokens=6,
        temperature=0.0 if greedy else 1.0,
        stop_ids=(3,),
    )


@pytest.mark.parametrize("mesh", [MeshConfig(fsdp=2, expert=4), MeshConfig(expert=2, tensor=2, context=2)], ids=str)
@pytest.mark.parametrize("greedy", [True, False])
def test_samples_are_those_of_one_device(mesh: MeshConfig, greedy: bool) -> None:
    config, params = NETS["hybrid"], random_weights(NETS["hybrid"], 0)
    expected = drawn(params, greedy=greedy)
    with use(mesh):
        found = drawn(apply.placed(config, params, at_rest=False), greedy=greedy)
    np.testing.assert_array_equal(found.ids_PGN, expected.ids_PGN)
    np.testing.assert_array_equal(found.lengths_PG, expected.lengths_PG)
    np.testing.assert_allclose(found.logprobs_PGN, expected.logprobs_PGN, atol=2e-5)
