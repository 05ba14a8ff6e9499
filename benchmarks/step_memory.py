"""Memory of an SFT step, by the compiler's own count, against the plain way of writing the same step.

    python benchmarks/step_memory.py [--topology=v5p:1x1x1]

Plain: logits of all tokens at once, a dense mask of attention, every activation kept, layers one by one. Both are
compiled for the same device, this CPU or a described TPU, with the same weights, batch and optimizer.
"""

import argparse
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from cascade_jax import logprob
from cascade_jax.config import ModelConfig, StageConfig
from cascade_jax.model import apply, attention, stack
from cascade_jax.optimizer import make_optimizer
from cascade_jax.plan.chips import described
from cascade_jax.stages.sft import supervised_loss
from cascade_jax.types import Batch, TrainState
from cascade_jax.update import make_update
from launch.topology import topology

NET = ModelConfig(
    vocab_size=32_768,
    width=512,
    pattern="MEM*E" * 3,
    heads=8,
    kv_heads=2,
    mamba_heads=16,
    mamba_groups=2,
    experts=16,
    experts_per_token=2,
    expert_width=512,
    shared_expert_width=1024,
)
ROWS, LENGTH = 2, 4096


def step_memory(config: ModelConfig, device: jax.Device) -> tuple[int, int]:
    """(arguments, scratch) of one update, bytes."""
    stage = StageConfig(kind="sft", steps=10, domains={"any": 1.0}, length=LENGTH)
    optimizer = make_optimizer(stage.optimizer, total_steps=10)
    update = make_update(stage.optimizer, partial(supervised_loss, config, stage), optimizer)
    params = apply.abstract(config)
    state = TrainState(params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((), jnp.int32))
    ids, mask = (jax.ShapeDtypeStruct((ROWS, LENGTH), dtype) for dtype in (jnp.int32, jnp.bool_))
    placed = SingleDeviceSharding(device)
    given = jax.tree.map(lambda leaf: leaf.update(sharding=placed), (state, Batch(ids, ids, ids, mask, {})))
    memory = update.lower(*given).compile().memory_analysis()
    return memory.argument_size_in_bytes, memory.temp_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="", help="a TPU to compile for; by default this machine")
    name = parser.parse_args().topology
    machine = topology(name) if name else None
    device = described(machine.kind, machine.shape, 1)[0] if machine else jax.devices()[0]
    arguments, ours = step_memory(NET, device)
    logprob.CHUNK_TOKENS, attention.QUERY_BLOCK, stack.FEWEST_REPEATS = ROWS * LENGTH, LENGTH, 99
    _, plain = step_memory(dataclasses.replace(NET, remat="none"), device)
    print(
        f"{ROWS} rows of {LENGTH} tokens, {device.device_kind}; weights, moments and batch {arguments / 2**20:.0f} MiB"
    )
    print(f"scratch: {ours / 2**20:.0f} MiB, the plain step {plain / 2**20:.0f} MiB: ratio {ours / plain:.2f}")
    print(f"all of it: ratio {(arguments + ours) / (arguments + plain):.2f}")


if __name__ == "__main__":
    main()
