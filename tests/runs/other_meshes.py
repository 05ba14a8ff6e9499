"""What test_checkpoint.py runs on eight devices: what is saved there, loaded on four, two and one of them."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cascade_jax.checkpoint import load_model, restore_state, save_model, save_state
from cascade_jax.config import ModelConfig
from cascade_jax.mesh import make_mesh
from cascade_jax.model import apply
from cascade_jax.types import Params, TrainState
from tests.model.conftest import SIZES, random_weights

CONFIG = ModelConfig(pattern="ME*", **{**SIZES, "vocab_size": 64, "experts": 8})
MESHES = {4: {"expert": 2, "tensor": 2}, 2: {"fsdp": 2}, 1: {}}


def state(params: Params) -> TrainState:
    params = apply.placed(CONFIG, params)
    optimizer_state = jax.tree.map(lambda leaf: leaf + 1, optax.adamw(1e-3).init(params))
    return TrainState(params, optimizer_state, jnp.asarray(5, jnp.int32))


def check(found: object, wanted: object) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def main(folder: Path) -> None:
    weights = random_weights(CONFIG, 0)
    with jax.set_mesh(make_mesh(fsdp=2, expert=4)):
        saved = state(weights)
        save_state(folder / "state", saved, {"next": 3})
        save_model(folder / "model", CONFIG, saved.params)
    for count, sizes in MESHES.items():
        with jax.set_mesh(make_mesh(**sizes, devices=jax.devices()[:count])):
            like = state(jax.tree.map(np.zeros_like, weights))
            restored, position = restore_state(folder / "state", 5, like)
            check(restored, saved)
            assert position == {"next": 3}
            assert len(restored.params["embedding"].sharding.device_set) == count
            params = load_model(folder / "model")[1]
            check(params, saved.params)
            assert count == 1 or len(params["embedding"].sharding.device_set) == count
        print(count, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
