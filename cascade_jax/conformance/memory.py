"""What a network takes on each device of a mesh, from shapes alone: nothing is allocated."""

import math
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from cascade_jax.config import ModelConfig
from cascade_jax.conformance.finding import Finding
from cascade_jax.mesh import MESH_AXES, shardings
from cascade_jax.model import apply

CHIPS = {"an 80 GB GPU": 80, "a TPU v5p": 95, "a 141 GB GPU": 141}  # GiB of memory
FULL = 0.8  # of a chip's memory; the rest is for activations, caches and the programs
TRAINED = 16  # bytes of a weight in training: itself, its two AdamW moments and its gradient, float32
MOST_DEVICES = 1024


def by_mesh(config: ModelConfig) -> list[Finding]:
    """GiB per device for 1, 2, 4, ... devices, up to where the smallest chip can train it."""
    findings: list[Finding] = []
    devices = 1
    while devices <= MOST_DEVICES:
        enough = False
        for shape in _shapes(config, devices):
            weights = weights_per_device(config, shape)
            if weights is None:
                continue
            sampling, training = 2 * weights / 2**30, TRAINED * weights / 2**30
            enough |= training <= FULL * min(CHIPS.values())
            name = "memory, " + " ".join(f"{axis} {size}" for axis, size in shape.items())
            text = (
                f"{_gib(sampling)} GiB to sample (bfloat16), {_gib(training)} to train (float32, AdamW): "
                f"{_trains_on(sampling, training)}"
            )
            findings.append(Finding(name, True, text))
        if enough:
            break
        devices *= 2
    return findings


def cache_size(config: ModelConfig) -> Finding:
    """What one sequence takes while it is sampled, bfloat16 with float32 states."""
    at = [_cache_bytes(config, capacity) for capacity in (0, 1000)]
    text = f"{(at[1] - at[0]) / 2**20:.3g} MiB for each 1,000 tokens of a sequence"
    if "M" in config.pattern:
        text += f", and {at[0] / 2**20:.3g} MiB for the states of its Mamba layers"
    return Finding("memory of a cache", True, text)


def weights_per_device(config: ModelConfig, shape: Mapping[str, int]) -> int | None:
    """How many numbers of the weights each device holds; None where a dimension does not divide by its mesh axis."""
    mesh = AbstractMesh(tuple(shape.get(axis, 1) for axis in MESH_AXES), MESH_AXES)
    placed = jax.tree.leaves(shardings(apply.logical_axes(config), mesh))
    try:
        return sum(
            math.prod(sharding.shard_shape(leaf.shape))
            for sharding, leaf in zip(placed, jax.tree.leaves(apply.abstract(config)), strict=True)
        )
    except ValueError:
        return None


def _shapes(config: ModelConfig, devices: int) -> Iterator[Mapping[str, int]]:
    yield {"fsdp": devices}
    expert = math.gcd(devices, config.experts, 8)  # more than 8 would leave one host
    if "E" in config.pattern and expert > 1:
        yield {"expert": expert, "fsdp": devices // expert}


def _cache_bytes(config: ModelConfig, capacity: int) -> int:
    cache = jax.eval_shape(lambda: apply.empty_cache(config, 1, capacity, dtype=jnp.bfloat16))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache.layers))


def _trains_on(sampling: float, training: float) -> str:
    trains, samples = ([name for name, size in CHIPS.items() if need <= FULL * size] for need in (training, sampling))
    if trains:
        return f"trains on {trains[0]}" + ("" if len(trains) == len(CHIPS) else " or larger")
    return f"samples on {samples[0]}, trains on none" if samples else "fits none"


def _gib(size: float) -> str:
    return f"{size:.3g}"
