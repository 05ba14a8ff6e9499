"""The programs that a stage really runs, as they are lowered for the devices of a mesh, with nothing allocated."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cascade_jax.config import CascadeConfig, ModelConfig, StageConfig
from cascade_jax.leaves import by_path, map_by_path
from cascade_jax.mesh import ROLLOUT_AXES, TOKENS, batch_shares
from cascade_jax.model import apply, lora
from cascade_jax.optimizer import make_optimizer
from cascade_jax.rollout import sampler
from cascade_jax.stages.distill import distillation_loss
from cascade_jax.stages.rl import policy_loss
from cascade_jax.stages.sft import supervised_loss
from cascade_jax.teacher import teacher_logprobs
from cascade_jax.types import Batch, Params, TrainState
from cascade_jax.update import make_update

LOSSES = {"sft": supervised_loss, "rl": policy_loss, "distill": distillation_loss}
FIELDS = {"sft": (), "rl": ("sampler_logprobs", "advantages"), "distill": ("sampler_logprobs", "teacher_logprobs")}


@dataclass(frozen=True)
class Step:
    """One program of a stage. rows and length: of its batch, or of the cache to decode. passes: micro-batches."""

    stage: str
    name: str  # update, teacher, prefill, decode
    rows: int
    length: int
    passes: int
    lower: Callable[[], jax.stages.Lowered]


def steps(config: CascadeConfig, model: ModelConfig, name: str, mesh: Mesh, *, decoded: int) -> Iterator[Step]:
    """All programs of the stage, for packed rows that are full. decoded: rows that one device decodes at a time.

    Rollouts are as many as fill one packed row at a time on each part of the mesh; see `rows`.
    """
    stage = config.stages[name]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        shares, rollouts = batch_shares(), batch_shares(ROLLOUT_AXES)
    count = rows(stage, shares)
    update = partial(_update, model, stage, mesh, count)
    yield Step(name, "update", count, stage.length, stage.micro_batches, update)
    if stage.kind == "sft":
        return
    if stage.kind == "distill" or stage.rl.kl_coef > 0:
        at_once = -(-8 // shares) * shares
        teacher = partial(_teacher, model, stage, mesh, at_once)
        yield Step(name, "teacher", at_once, stage.length, 1, teacher)
    longest, capacity = max(config.buckets), max(config.buckets) + stage.sampling.max_tokens
    prompts = -(-sampler.PREFILL_PROMPTS // rollouts) * rollouts
    yield Step(name, "prefill", prompts, longest, 1, partial(_prefill, model, mesh, prompts, longest))
    many = decoded * rollouts
    yield Step(name, "decode", many, capacity, 1, partial(_decode, model, stage, mesh, many, capacity))


def rows(stage: StageConfig, shares: int) -> int:
    """Packed rows of an optimizer step: as set for SFT, else one at a time for each part of the mesh."""
    return stage.sft.rows if stage.kind == "sft" else stage.micro_batches * shares


def _update(model: ModelConfig, stage: StageConfig, mesh: Mesh, rows: int) -> jax.stages.Lowered:
    frozen = lora.frozen(stage.lora)
    optimizer = make_optimizer(stage.optimizer, total_steps=stage.steps, frozen=frozen)
    update = make_update(stage.optimizer, partial(LOSSES[stage.kind], model, stage), optimizer, frozen=frozen)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        params = _params(model, mesh, stage)
        places = by_path(jax.tree.map(lambda leaf: leaf.sharding, params))
        moments = map_by_path(
            lambda path, leaf: _placed(leaf, mesh, _of_weight(path, places)), jax.eval_shape(optimizer.init, params)
        )
        state = TrainState(params, moments, _array(mesh, (), jnp.int32, PartitionSpec()))
        fields = FIELDS[stage.kind]
        if stage.kind == "rl" and stage.rl.kl_coef > 0:
            fields += ("reference_logprobs",)
        return update.lower(state, _batch(mesh, rows, stage.length, fields), micro_batches=stage.micro_batches)


def _teacher(model: ModelConfig, stage: StageConfig, mesh: Mesh, rows: int) -> jax.stages.Lowered:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        batch = _batch(mesh, rows, stage.length, ())
        filters = {name: getattr(stage.sampling, name) for name in ("temperature", "top_p", "top_k")}
        return teacher_logprobs.lower(model, _params(model, mesh), batch, **filters)


def _prefill(model: ModelConfig, mesh: Mesh, rows: int, length: int) -> jax.stages.Lowered:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        by_row = PartitionSpec(ROLLOUT_AXES)
        ids = _array(mesh, (rows, length), jnp.int32, by_row)
        return sampler.prefill.lower(model, _serving(model, mesh), ids, _array(mesh, (rows,), jnp.int32, by_row))


def _decode(model: ModelConfig, stage: StageConfig, mesh: Mesh, rows: int, capacity: int) -> jax.stages.Lowered:
    """The whole loop, whose body is one token for every row."""
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        by_row = PartitionSpec(ROLLOUT_AXES)
        cache = jax.eval_shape(lambda: apply.empty_cache(model, rows, capacity))
        cache = jax.tree.map(lambda leaf, spec: _placed(leaf, mesh, spec), cache, apply.cache_specs(cache))
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
        return sampler.decode.lower(
            model,
            _serving(model, mesh),
            cache,
            last_B=_array(mesh, (rows,), jnp.int32, by_row),
            live_B=_array(mesh, (rows,), bool, by_row),
            keys_B=_placed(keys, mesh, by_row),
            max_tokens=stage.sampling.max_tokens,
            temperature=stage.sampling.temperature,
            top_p=stage.sampling.top_p,
            top_k=stage.sampling.top_k,
            stop_ids=(2, 11),
        )


def _params(model: ModelConfig, mesh: Mesh, stage: StageConfig | None = None) -> Params:
    """Float32 weights at rest, with the stage's adapters."""
    params = apply.abstract(model)
    if stage is not None and stage.lora.rank > 0:
        params = jax.eval_shape(lambda: lora.add(apply.init(model, jax.random.key(0)), stage.lora, seed=0))
    specs = apply.weight_specs(model, params)
    return jax.tree.map(lambda leaf, spec: _placed(leaf, mesh, spec), params, specs)


def _serving(model: ModelConfig, mesh: Mesh) -> Params:
    params = jax.eval_shape(lambda: apply.cast(model, apply.init(model, jax.random.key(0))))
    specs = apply.weight_specs(model, params, at_rest=False)
    return jax.tree.map(lambda leaf, spec: _placed(leaf, mesh, spec), params, specs)


def _of_weight(path: str, places: dict[str, NamedSharding]) -> PartitionSpec:
    """Where a leaf of the optimizer's state lies: as its weight, whose path its own ends in."""
    while path not in places and "/" in path:
        path = path.partition("/")[2]
    return places[path].spec if path in places else PartitionSpec()


def _batch(mesh: Mesh, rows: int, length: int, fields: tuple[str, ...]) -> Batch:
    def tokens(dtype: Any) -> jax.ShapeDtypeStruct:
        return _array(mesh, (rows, length), dtype, TOKENS)

    ids, mask = tokens(jnp.int32), tokens(jnp.bool_)
    return Batch(ids, ids, ids, mask, {name: tokens(jnp.float32) for name in fields})


def _array(mesh: Mesh, shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def _placed(leaf: jax.ShapeDtypeStruct, mesh: Mesh, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
