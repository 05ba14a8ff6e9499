"""The network as pure functions of (config, params, ...); params is a nested dict of arrays with string keys.

    params["embedding"], params["layers"]["0"]["norm"], params["layers"]["0"]["mixer"]["q_proj"], ..., params["head"]

Matrices are stored (in, out). This is the only file in which Flax modules are taken apart and put together.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.leaves import by_path, map_by_path
from cascade_jax.mesh import BATCH_AXES, ROLLOUT_AXES, TOKENS, put, specs
from cascade_jax.model import axes
from cascade_jax.model import cache as caches
from cascade_jax.model.cache import Cache
from cascade_jax.model.hybrid import Hybrid, Layer
from cascade_jax.model.moe import Routed
from cascade_jax.model.stack import through
from cascade_jax.types import Params, Weighted
from pallas_kernels.grouped_matmul import padded_width


class Aux(NamedTuple):
    """What the E layers report, in their order; padding counts nowhere.

    expert_counts: (token, slot) pairs sent to each expert. balance_loss: the sequence balance loss without its
    coefficient, summed over layers; its weight is the number of sequences. expert_ids: where asked for, else None.
    """

    expert_counts: Float[Array, "layers E"]
    balance_loss: Weighted
    expert_ids: Int[Array, "layers B T k"] | None


@functools.cache
def _declared(config: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Hybrid(config, jax.random.key(0))))


def _model(config: ModelConfig, params: Params) -> Hybrid:
    return nnx.merge(_declared(config)[0], params)


@functools.cache
def _declared_layer(config: ModelConfig, letter: str) -> Any:
    return nnx.split(nnx.eval_shape(lambda: Layer(config, jax.random.key(0), letter)))[0]


def _layer(config: ModelConfig, letter: str, params: Params, *given: Array) -> tuple[Array, Routed | None]:
    return nnx.merge(_declared_layer(config, letter), params)(*given)


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

    def run(config: ModelConfig, params: Params, ids_BT: Array, segments_BT: Array) -> tuple[Array, Aux]:
        model, layer = _model(config, params), functools.partial(_layer, config)
        x, positions = model.embed(ids_BT), model.positions(segments_BT)
        x, routed = through(config, layer, params["layers"], x, segments_BT, positions)
        return model.normed(x), _aux(config, routed, expert_ids=expert_ids)

    chosen = PartitionSpec(None, *TOKENS) if expert_ids and "E" in config.pattern else None
    whole = PartitionSpec()
    out = (TOKENS, Aux(whole, Weighted(whole, whole), chosen))
    return over_mesh(run, config, params, ids_BT, segments_BT, in_specs=(TOKENS, TOKENS), out_specs=out)


def _aux(config: ModelConfig, routed: Routed | None, *, expert_ids: bool) -> Aux:
    if routed is None:
        zero = jnp.zeros(())
        return Aux(jnp.zeros((0, config.experts)), Weighted(zero, zero), None)
    counts = axes.total(routed.counts_E, *BATCH_AXES, "context")
    balance = Weighted(routed.balance.total.sum(), routed.balance.weight[0])  # of the same sequences in every layer
    return Aux(counts, axes.total(balance, *BATCH_AXES, "context"), routed.ids if expert_ids else None)


def logits(config: ModelConfig, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """The head alone, float32."""
    return _model(config, params).logits(hidden)


def head(config: ModelConfig, params: Params) -> Float[Array, "D V"]:
    """The matrix of the head, gathered where FSDP split it: once for all chunks of tokens that go through it."""
    return _model(config, params).head_matrix()


def over_mesh(
    run: Callable[..., Any],
    config: ModelConfig,
    params: Params,
    *given: Any,
    in_specs: tuple[Any, ...],
    out_specs: Any,
    at_rest: bool = True,
) -> Any:
    """run(config, params, *given), on every device of the mesh with its share of weights and of the given arrays.

    Without a mesh (jax.set_mesh) it is the plain call. ValueError where the mesh does not divide the network or batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1 or mesh.manual_axes:
        return run(config, params, *given)
    here, places = axes.local(config, mesh.shape["tensor"]), weight_specs(config, params, at_rest=at_rest)

    def one(params: Params, *given: Any) -> Any:
        dtypes = map_by_path(lambda path, share: axes.read_dtype(path, share, config.dtype), params)
        return run(here, jax.tree.map(axes.gathered, params, places, dtypes), *given)

    return jax.shard_map(one, in_specs=(places, *in_specs), out_specs=out_specs, check_vma=False)(params, *given)


def pad_experts(config: ModelConfig) -> ModelConfig:
    """The network with zeros beside its experts' matrices where kernels need them: up to a multiple of 128 columns."""
    if "E" not in config.pattern:
        return config
    return dataclasses.replace(config, expert_padding=padded_width(config.expert_width) - config.expert_width)


def grown(config: ModelConfig, params: Params) -> Params:
    """Params as `config` has them, out of those of a network with less padding."""

    def pad(leaf: Array, want: jax.ShapeDtypeStruct) -> Array:
        more = [(0, size - here) for size, here in zip(want.shape, leaf.shape, strict=True)]
        return jnp.pad(leaf, more) if any(after for _, after in more) else leaf

    return placed(config, jax.tree.map(pad, params, abstract(config)))


def placed(config: ModelConfig, tree: Params, *, at_rest: bool = True) -> Params:
    """Params, or any tree with some of their paths, as the mesh in use splits them; the rest whole on every device."""
    mesh = jax.sharding.get_mesh()
    if mesh.size <= 1:
        return tree
    places = weight_specs(config, tree, at_rest=at_rest)
    return jax.tree.map(lambda leaf, spec: put(leaf, NamedSharding(mesh, spec)), tree, places)


def cast(config: ModelConfig, params: Params) -> Params:
    """Params as layers read them: what sampling needs of the float32 masters. Log-probs stay the same bits."""
    return map_by_path(lambda path, leaf: leaf.astype(axes.read_dtype(path, leaf, config.dtype)), params)


def weight_specs(config: ModelConfig, params: Params, *, at_rest: bool = True) -> Params:
    """The tree of params with a PartitionSpec for every array, of adapters too."""
    names = specs(logical_axes(config), at_rest=at_rest)
    by_weight = by_path(names, is_leaf=lambda node: isinstance(node, PartitionSpec))

    def one(path: str, _: Array) -> PartitionSpec:
        weight, _, part = path.rpartition("/")
        if path in by_weight:
            return by_weight[path]
        *experts, rows, columns = by_weight[weight]
        return PartitionSpec(*experts, *{"base": (rows, columns), "a": (rows, None), "b": (None, columns)}[part])

    return map_by_path(one, params)


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

    def run(config: ModelConfig, params: Params, *given: Any) -> tuple[Array, Cache]:
        model = _model(config, params)
        last, cache = model.extend(*given)
        return model.logits(last), cache

    by_row = PartitionSpec(ROLLOUT_AXES)
    places = cache_specs(cache)
    in_specs, out_specs = (by_row, by_row, places), (PartitionSpec(ROLLOUT_AXES, "tensor"), places)
    given = (ids_BT, lengths_B, cache)
    return over_mesh(run, config, params, *given, in_specs=in_specs, out_specs=out_specs, at_rest=False)


def cache_specs(cache: Cache) -> Cache:
    """A PartitionSpec for every array of a cache: by rows, and by the heads of keys, values and states."""
    return Cache(jax.tree.map(_cache_spec, cache.layers), PartitionSpec(ROLLOUT_AXES))


def _cache_spec(leaf: Array) -> PartitionSpec:
    convolution = leaf.ndim == 3  # (B, W, channels), where all others have heads after the rows
    return PartitionSpec(ROLLOUT_AXES, None, "tensor") if convolution else PartitionSpec(ROLLOUT_AXES, "tensor")


def decode(
    config: ModelConfig, params: Params, ids_B: Int[Array, " B"], cache: Cache
) -> tuple[Float[Array, "B V"], Cache]:
    """Append one token to every row; the logits after it."""
    return prefill(config, params, ids_B[:, None], jnp.ones_like(ids_B), cache)
