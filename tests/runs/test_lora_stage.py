"""What a checkpoint of a stage that trains adapters holds."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cascade_jax.checkpoint import restore_state, save_state
from cascade_jax.config import LoRAConfig, ModelConfig, OptimizerConfig
from cascade_jax.leaves import by_path
from cascade_jax.model import apply, lora
from cascade_jax.optimizer import make_optimizer
from cascade_jax.types import Params, TrainState, Weighted
from cascade_jax.update import make_update

ALL = LoRAConfig(rank=2, targets=("attention", "mamba", "mamba_out", "mlp", "experts"))
NET = ModelConfig(
    vocab_size=16, width=8, pattern="E", head_dim=8, experts=4, experts_per_token=2, expert_width=8,
    shared_expert_width=8,
)  # fmt: skip


def loss(params: Params, ids: jax.Array) -> tuple[Weighted, dict[str, Weighted]]:
    hidden, aux = apply.hidden(NET, params, ids)
    logprobs = jax.nn.log_softmax(apply.logits(NET, params, hidden))[:, :-1]
    total = -jnp.take_along_axis(logprobs, ids[:, 1:, None], -1).sum()
    return Weighted(total, jnp.float32(ids[:, 1:].size)), {"expert_counts": Weighted(aux.expert_counts, jnp.ones(()))}


def test_a_restored_state_goes_on_with_the_same_bits(tmp_path: Path):
    """Also: the optimizer holds two moments of the adapters and nothing else, and nothing but adapters moves."""
    ids = np.random.default_rng(0).integers(0, NET.vocab_size, (4, 3, 9)).astype(np.int32)
    frozen = lora.frozen(ALL)
    config = OptimizerConfig(learning_rate=0.1, router_bias_rate=0.1)
    optimizer = make_optimizer(config, total_steps=4, frozen=frozen)
    update = make_update(config, loss, optimizer, frozen=frozen)

    def fresh() -> TrainState:
        params = lora.add(apply.init(NET, jax.random.key(0)), ALL, seed=0)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    adapters = [leaf for path, leaf in by_path(fresh().params).items() if lora.is_adapter(path)]
    assert optimizer_bytes(fresh()) - 2 * sum(leaf.nbytes for leaf in adapters) < 16  # the rest: step counters

    state = fresh()
    for step in range(4):
        state, _ = update(state, ids[step])
        if step == 1:
            save_state(tmp_path, state, {}, frozen=frozen)
    resumed, _ = restore_state(tmp_path, 2, fresh(), frozen=frozen)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(state), strict=True))
    for step in (2, 3):
        resumed, _ = update(resumed, ids[step])
    jax.tree.map(np.testing.assert_array_equal, resumed, state)
    for path, leaf in by_path(fresh().params).items():
        assert lora.is_adapter(path) == (leaf != by_path(state.params)[path]).any(), path


def optimizer_bytes(state: TrainState) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state.optimizer_state))
