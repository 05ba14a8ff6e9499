"""A Hugging Face folder as config and params, read block by block into the sharding of a mesh."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import Array, Float

from cascade_jax.config import ModelConfig
from cascade_jax.leaves import by_path
from cascade_jax.mesh import shardings
from cascade_jax.model import apply
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.files import DTYPES, Folder, Stored, read_folder
from cascade_jax.model.convert.names import HEAD, Tensor, canonical, family, from_file, tensors
from cascade_jax.model.convert.settings import config_from_hf
from cascade_jax.types import Params

DROPPED = ("mtp.",)  # heads for multi-token prediction, which the network does not have
DERIVED = ("rotary_emb.inv_freq",)  # buffers that old checkpoints hold and that follow from the config
ZERO_NORM = 1e-3  # embedding rows below are those of tokens that were never trained


def load_hf(
    path: str | Path, *, mesh: Mesh | None = None, dtype: Any = None, repair_embeddings: bool = False
) -> tuple[ModelConfig, Params]:
    """The network and weights of a Hugging Face folder (nemotron_h, qwen3, qwen3_moe, llama; safetensors).

    Each weight is read straight into its shards on `mesh` (None: the default device); the host never holds more than
    one weight's block beside them. dtype None keeps the stored dtypes; the network multiplies in it too, but in float32
    on a CPU. `repair_embeddings` gives all-zero embedding rows the mean of the others: base checkpoints ship them for
    tokens that they never saw, and RMS norms blow up their gradients.
    FileNotFoundError, or one CheckpointError that lists every file and tensor that is missing, left over or broken.
    """
    folder = Path(path)
    config, stored = read_plan(folder)
    if dtype is not None:
        config = dataclasses.replace(config, dtype="bfloat16" if jnp.dtype(dtype) == jnp.bfloat16 else "float32")
    config = runnable(config)
    params = _read(config, stored, mesh, dtype, folder)
    if repair_embeddings:
        params["embedding"] = repaired(params["embedding"])
    return config, params


def runnable(config: ModelConfig) -> ModelConfig:
    """The network as this machine should run it: a CPU has no fast bfloat16 and takes float32 products."""
    return dataclasses.replace(config, dtype="float32") if jax.default_backend() == "cpu" else config


def read_plan(folder: Path) -> tuple[ModelConfig, dict[str, tuple[Stored, ...]]]:
    """The network, and where in the files each of its weights lies, from headers alone. Errors as `load_hf`."""
    config = read_config(folder)
    try:
        found = find(folder, config)
        if config.tied_embeddings and not _same(found.tensors.get(HEAD), found.tensors.get(tensors(config)[0].name)):
            config = dataclasses.replace(config, tied_embeddings=False)  # as transformers does: the file decides
        return config, match(tensors(config), found, tied=config.tied_embeddings)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def read_config(folder: Path) -> ModelConfig:
    """The network that the folder's config.json describes."""
    values = read_settings(folder)
    try:
        return config_from_hf(values)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def read_settings(folder: Path) -> dict[str, Any]:
    """config.json. FileNotFoundError where there is none, CheckpointError where it is no JSON object."""
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} is no Hugging Face checkpoint (no config.json); give a folder that has one.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON ({error}); fetch it again.") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds no JSON object; fetch it again.")
    return values


def find(folder: Path, config: ModelConfig) -> Folder:
    """The folder's tensors by the names of our tables, with experts that are stored as one tensor taken apart."""
    read, kind = read_folder(folder), family(config)
    found: dict[str, Stored] = {}
    faults, unread = list(read.faults), {canonical(name, kind) for name in read.unread or ()}
    for source, stored in read.tensors.items():
        if source.endswith(DERIVED):
            continue
        if stored.dtype not in DTYPES:
            faults.append(f"{stored} has dtype {stored.dtype} instead of {', '.join(DTYPES)} (quantised?)")
            unread.add(canonical(source, kind))
            continue
        for name, part in _single_experts(canonical(source, kind), stored, config.experts):
            if name in found:
                faults.append(f"{part} and {found[name]} are the same weight")
            found[name] = part
    return Folder(found, faults, None if read.unread is None else frozenset(unread))


def match(wanted: list[Tensor], folder: Folder, *, tied: bool) -> dict[str, tuple[Stored, ...]]:
    """weight -> its blocks in the files, one per expert where it has experts. CheckpointError lists all misfits."""
    found, faults = folder.tensors, list(folder.faults)
    names = {tensor.name for tensor in wanted}
    for tensor in wanted:
        stored = found.get(tensor.name)
        if stored is None and not _explained(tensor.name, folder.unread):
            faults.append(f"{tensor.name} is missing")
        elif stored is not None and stored.shape != tensor.shape:
            faults.append(f"{stored} has shape {stored.shape} instead of {tensor.shape}")
    for name, stored in found.items():
        if name not in names and not name.startswith(DROPPED) and not (tied and name == HEAD):
            faults.append(f"{stored} is left over")
    if faults:
        raise CheckpointError(f"the files do not fit each other or config.json: {'; '.join(faults)}.")
    blocks: dict[str, list[Stored]] = {}
    for tensor in wanted:
        row, whole = 0, found[tensor.name]
        for part in tensor.parts:
            blocks.setdefault(part.weight, []).append(whole.part(row, part.rows, *whole.shape[1:]))
            row += part.rows
    return {weight: tuple(members) for weight, members in blocks.items()}


def _explained(name: str, unread: frozenset[str] | None) -> bool:
    """Whether another fault says already why a tensor, or the one that it is fused into, is not there."""
    if unread is None or name in unread:
        return True
    before, fused, rest = name.rpartition(".experts.")
    projection = rest.split(".")[1] if fused else ""
    return any(f"{before}.experts.{fusion}" in unread for fusion in (projection, "gate_up_proj") if projection)


def _single_experts(name: str, stored: Stored, experts: int) -> list[tuple[str, Stored]]:
    """transformers keeps `experts.up_proj` (E, out, in), and gate above up as `experts.gate_up_proj` (E, 2 out, in)."""
    before, fused, projection = name.rpartition(".experts.")
    if not fused or "." in projection or len(stored.shape) != 3 or stored.shape[0] != experts:
        return [(name, stored)]
    _, rows, columns = stored.shape
    found = []
    for e in range(experts):
        block = stored.part(e, 1, rows, columns)._replace(shape=(rows, columns))
        parts = {projection: block}
        if projection == "gate_up_proj":
            half = rows // 2
            parts = {"gate_proj": block.part(0, half, columns), "up_proj": block.part(half, half, columns)}
        found += [(f"{before}.experts.{e}.{part}.weight", place) for part, place in parts.items()]
    return found


def _same(head: Stored | None, embedding: Stored | None) -> bool:
    """False where both are there and differ."""
    if head is None or embedding is None:
        return True
    alike = head.shape == embedding.shape and head.dtype == embedding.dtype
    return alike and np.array_equal(head.read(), embedding.read())


def _read(
    config: ModelConfig, stored: Mapping[str, tuple[Stored, ...]], mesh: Mesh | None, dtype: Any, folder: Path
) -> Params:
    abstract = apply.abstract(config)
    if mesh is None:
        device = SingleDeviceSharding(jax.local_devices()[0])
        places = jax.tree.map(lambda leaf: device, abstract)
    else:
        places = shardings(apply.logical_axes(config), mesh)
    broken: list[str] = []
    leaves = {}
    for (weight, leaf), sharding in zip(by_path(abstract).items(), jax.tree.leaves(places), strict=True):
        blocks = stored[weight]
        kind = jnp.dtype(dtype) if dtype is not None else jnp.result_type(*(DTYPES[block.dtype] for block in blocks))
        read = functools.partial(_block, weight, blocks, kind, broken)
        leaves[weight] = jax.make_array_from_callback(leaf.shape, sharding, read, dtype=kind)
    if broken:
        raise CheckpointError(f"{folder}: {', '.join(dict.fromkeys(broken))} holds NaN or infinity; fetch it again.")
    return jax.tree.unflatten(jax.tree.structure(abstract), list(leaves.values()))


def _block(
    weight: str, blocks: tuple[Stored, ...], dtype: np.dtype, broken: list[str], index: tuple[slice, ...]
) -> np.ndarray:
    """What one device holds of a weight, out of the files; names of tensors that are not finite go to `broken`."""

    def matrix(stored: Stored, index: tuple[slice, ...]) -> np.ndarray:
        # A file has the transpose of what we keep, so its index is read from the back.
        turned = index if weight == "embedding" else index[::-1]
        if weight.endswith("conv_weight"):
            turned = (index[1], slice(None), index[0])
        array = stored.read(turned)
        if not np.isfinite(array).all():
            broken.append(str(stored))
        return from_file(weight, array).astype(dtype, copy=False)

    if len(blocks) == 1 and len(index) == len(blocks[0].shape) - weight.endswith("conv_weight"):
        return matrix(blocks[0], index)
    return np.stack([matrix(stored, index[1:]) for stored in blocks[index[0]]])


@jax.jit
def repaired(embedding: Float[Array, "V D"]) -> Float[Array, "V D"]:
    """The embedding with the mean of the other rows in place of those that are zero."""
    rows = embedding.astype(jnp.float32)
    zero = jnp.linalg.norm(rows, axis=1, keepdims=True) < ZERO_NORM
    mean = jnp.where(zero, 0.0, rows).sum(0) / jnp.maximum((~zero).sum(), 1)
    return jnp.where(zero, mean, rows).astype(embedding.dtype)
