"""What test_mesh.py runs: a network and its training on meshes of eight devices against one device, in one process."""

import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from cascade_jax.config import MeshConfig, ModelConfig, OptimizerConfig
from cascade_jax.leaves import by_path, map_by_path
from cascade_jax.logprob import token_logprobs
from cascade_jax.mesh import TOKENS, use
from cascade_jax.model import apply
from cascade_jax.optimizer import make_optimizer
from cascade_jax.types import Batch, Params, TrainState, Weighted
from cascade_jax.update import Update, make_update
from tests.model.conftest import SIZES, random_weights

EVEN = {**SIZES, "vocab_size": 64, "experts": 8}
NETS = {
    "hybrid": ModelConfig(pattern="ME*", **EVEN),
    "qwen3-moe": ModelConfig(
        pattern="*E",
        rope_theta=1000.0,
        qk_norm=True,
        activation="swiglu",
        **{**EVEN, "router": "softmax", "shared_expert_width": 0, "routed_scale": 1.0},
    ),
}
# eps: far above rounding, so that Adam does not turn the noise of a gradient that is nearly 0 into a whole step.
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, clip_norm=0.5, router_bias_rate=1e-2, eps=1e-3)
ROWS, LENGTH = 8, 32


def batch() -> Batch:
    """Packed rows: sequences that end anywhere, padding at the end and within, one row of nothing but padding."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 64, (ROWS, LENGTH)).astype(np.int32)
    segments = np.sort(rng.integers(1, 5, (ROWS, LENGTH)), axis=1).astype(np.int32)
    segments[0, -5:] = segments[1, :3] = segments[2] = 0
    segments[3] = 1  # one sequence over all of a row
    return Batch(ids, segments, np.roll(ids, -1, axis=1), segments > 0, {})


def to_one_expert(params: Params) -> Params:
    """The same weights, but every token chooses the first experts."""

    def pushed(path: str, leaf: np.ndarray) -> np.ndarray:
        return leaf + 100.0 * (np.arange(leaf.size) < 2) if path.endswith("router_bias") else leaf

    return map_by_path(pushed, params)


def loss(config: ModelConfig, params: Params, batch: Batch) -> tuple[tuple[Weighted, ...], dict[str, Weighted]]:
    hidden, aux = apply.hidden(config, params, batch.ids_BT, batch.segments_BT)
    logprobs, entropy = token_logprobs(config, params, hidden, batch.targets_BT, chunk=16)
    values = jnp.where(batch.mask_BT, 0.1 * entropy - logprobs, 0.0)
    token_loss = Weighted(values.sum(), batch.mask_BT.sum().astype(jnp.float32))
    metrics = {"expert_counts": Weighted(aux.expert_counts, jnp.ones(()))}
    return (token_loss, Weighted(0.1 * aux.balance_loss.total, aux.balance_loss.weight)), metrics


def step(update: Update, optimizer: optax.GradientTransformation, params: Params, batch: Batch) -> dict[str, Any]:
    """The loss, the first moments (which are the gradient) and the weights after a step, by name."""
    params = jax.tree.map(jnp.copy, params)
    state, metrics = update(TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32)), batch)
    found = {f"step {path}": leaf for path, leaf in by_path(state.params).items()}
    found |= {f"state {path}": leaf for path, leaf in by_path(state.optimizer_state).items()}
    return {**jax.tree.map(np.asarray, found), "loss": np.asarray(metrics["loss"].mean)}


def main(net: str, *meshes: str) -> None:
    config = NETS[net]
    weights = {"spread": random_weights(config, 0)}
    if config.router == "sigmoid":
        weights["one expert"] = to_one_expert(weights["spread"])
    optimizer = make_optimizer(OPTIMIZER, total_steps=3)
    update = make_update(OPTIMIZER, functools.partial(loss, config), optimizer)  # compiled once for each mesh
    alone = {name: step(update, optimizer, params, batch()) for name, params in weights.items()}
    for sizes in meshes:
        with use(MeshConfig(**json.loads(sizes))):
            rows = jax.device_put(batch(), NamedSharding(jax.sharding.get_mesh(), TOKENS))
            for name, params in weights.items():
                found = step(update, optimizer, apply.placed(config, params), rows)
                for key, value in alone[name].items():
                    scale = max(np.abs(value).max(), 1e-3)
                    np.testing.assert_allclose(found[key] / scale, value / scale, atol=1e-5, err_msg=f"{sizes} {key}")
        print(sizes, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
