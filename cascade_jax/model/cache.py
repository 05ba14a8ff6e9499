"""What a network remembers between calls of prefill and decode: pytrees, passed in and returned."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValue:
    """An attention layer's keys and values. Keys lie transposed: a CPU scores a whole row of them twice as fast."""

    keys: Float[Array, "B K h C"]
    values: Float[Array, "B K C h"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MambaState:
    """A Mamba-2 layer's last conv_kernel - 1 raw convolution inputs, and its recurrent state (float32)."""

    conv: Float[Array, "B W channels"]
    ssm: Float[Array, "B H P N"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """An entry per layer (None where a layer remembers nothing) and the tokens seen by each row."""

    layers: tuple[KeyValue | MambaState | None, ...]
    lengths_B: Int[Array, " B"]


def empty(config: ModelConfig, batch: int, capacity: int, *, dtype: jnp.dtype | None = None) -> Cache:
    """A cache that has seen nothing and holds up to `capacity` tokens per row. dtype: of all but SSM states."""
    dtype = config.dtype if dtype is None else dtype

    def layer(letter: str) -> KeyValue | MambaState | None:
        if letter == "*":
            shape = (batch, config.kv_heads, capacity, config.head_dim)
            return KeyValue(jnp.zeros(shape, dtype).swapaxes(2, 3), jnp.zeros(shape, dtype))
        if letter == "M":
            channels = config.mamba_width + 2 * config.mamba_groups * config.state
            ssm_shape = (batch, config.mamba_heads, config.mamba_head_dim, config.state)
            return MambaState(
                jnp.zeros((batch, config.conv_kernel - 1, channels), dtype), jnp.zeros(ssm_shape, jnp.float32)
            )
        return None

    return Cache(tuple(layer(letter) for letter in config.pattern), jnp.zeros(batch, jnp.int32))


def repeat(cache: Cache, times: int) -> Cache:
    """Every row `times` times: row p becomes rows p * times .. p * times + times - 1 (a group shares its prompt)."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), cache)


def grow(cache: Cache, capacity: int) -> Cache:
    """The same cache with room for `capacity` tokens per row, at least what it had."""

    def layer(entry: KeyValue | MambaState | None) -> KeyValue | MambaState | None:
        if not isinstance(entry, KeyValue):
            return entry
        extra = capacity - entry.values.shape[2]
        return KeyValue(
            jnp.pad(entry.keys, ((0, 0), (0, 0), (0, 0), (0, extra))),
            jnp.pad(entry.values, ((0, 0), (0, 0), (0, extra), (0, 0))),
        )

    return Cache(tuple(layer(entry) for entry in cache.layers), cache.lengths_B)
