"""The network as pure functions of (config, params, ...); params is a nested dict of arrays with string keys.

    params["embedding"], params["layers"]["0"]["norm"], params["layers"]["0"]["mixer"]["q_proj"], ..., params["head"]

Matrices are stored (in, out). This is the only file in which Flax modules are taken apart and put together.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import cache as caches
from cascade_jax.model.cache import Cache
from cascade_jax.model.hybrid import Aux, Hybrid
from cascade_jax.types import Params


@functools.cache
def _declared(config: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Hybrid(config, jax.random.key(0))))


def _model(config: ModelConfig, params: Params) -> Hybrid:
    return nnx.merge(_declared(config)[0], params)


@functools.partial(jax.jit, static_argnums=0)
def init(config: ModelConfig, key: Array) -> Params:
    """Fresh float32 weights."""
    return nnx.to_pure_dict(nnx.split(Hybrid(config, key))[1])


def abstract(config: ModelConfig) -> Params:
    """The tree of `init` as ShapeDtypeStructs; nothing is allocated."""
    return nnx.to_pure_dict(_declared(config)[1])


def logical_axes(config: ModelConfig) -> dict[str, Any]:
    """The tree of `init` with a tuple of logical axis names for each weight, as cascade_jax.mesh reads it."""
    state = _declared(config)[1]
    is_weight = lambda leaf: isinstance(leaf, nnx.Variable)  # noqa: E731
    names = jax.tree.map(lambda weight: weight.get_metadata("axes"), state, is_leaf=is_weight)
    return nnx.to_pure_dict(names)


def hidden(
    config: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"] | None = None,
    *,
    expert_ids: bool = False,
) -> tuple[Float[Array, "B T D"], Aux]:
    """Hidden states after the final norm. Segments: 0 = padding, 1.. = packed sequences; None = one sequence a row."""
    segments_BT = jnp.ones_like(ids_BT) if segments_BT is None else segments_BT
    return _model(config, params).hidden(ids_BT, segments_BT, expert_ids=expert_ids)


def logits(config: ModelConfig, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """The head alone, float32."""
    return _model(config, params).logits(hidden)


def empty_cache(config: ModelConfig, batch: int, capacity: int, *, dtype: jnp.dtype | None = None) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens. dtype (the config's) is of keys, values and conv inputs."""
    return caches.empty(config, batch, capacity, dtype=dtype)


def prefill(
    config: ModelConfig,
    params: Params,
    ids_BT: Int[Array, "B T"],
    lengths_B: Int[Array, " B"],
    cache: Cache,
) -> tuple[Float[Array, "B V"], Cache]:
    """Append the first lengths_B[b] of each row's right-padded ids; logits after the last of them.

    Rows with length 0 stay as they were and get finite logits without meaning. Tokens beyond the capacity are lost.
    """
    model = _model(config, params)
    last, cache = model.extend(ids_BT, lengths_B, cache)
    return model.logits(last), cache


def decode(
    config: ModelConfig, params: Params, ids_B: Int[Array, " B"], cache: Cache
) -> tuple[Float[Array, "B V"], Cache]:
    """Append one token to every row; the logits after it."""
    return prefill(config, params, ids_B[:, None], jnp.ones_like(ids_B), cache)
