"""Config and params as a Hugging Face folder that transformers and vLLM load."""

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from cascade_jax.config import ModelConfig
from cascade_jax.folder import check_apart, is_checkpoint, replaced
from cascade_jax.leaves import by_path, misfits
from cascade_jax.model import apply
from cascade_jax.model.convert.carried import copy_side_files, kept_settings
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.files import CODES, DTYPES, INDEX, Stored, write_file
from cascade_jax.model.convert.load import DROPPED, find, read_settings
from cascade_jax.model.convert.names import HEAD, Tensor, family, ships_tied_head, tensors, to_file
from cascade_jax.model.convert.settings import config_to_hf
from cascade_jax.types import Params

SHARD_BYTES = 5 * 10**9  # of one file at most, as is usual

TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def save_hf(
    path: str | Path,
    config: ModelConfig,
    params: Params,
    *,
    source: str | Path | None = None,
    side_files: str | Path | None = None,
    keep_mtp: bool = False,
) -> None:
    """Write the folder `path`, beside it first and then in its place; an older checkpoint there is replaced.

    Without `source` every tensor has its weight's dtype. With it, the Hugging Face folder that the model came from,
    each tensor has the dtype that it has there, settings of config.json that the network does not know stay, and
    tokenizer, chat template and generation settings come along; `keep_mtp` copies its `mtp.` tensors too. The folder
    `side_files` gives the tokenizer and the like where they are not the source's.
    CheckpointError where no such model exists or the source is of another; FileExistsError where `path` is no
    checkpoint, or the source itself.
    """
    target = Path(path)
    _check_target(target, source, side_files)
    wanted, leaves, stored = tensors(config), by_path(params), {}
    faults = misfits(params, apply.abstract(config))
    if faults:
        raise CheckpointError(f"the params are not of this config: {', '.join(faults)}.")
    settings = kept_settings(Path(side_files), family(config)) if side_files is not None else None
    if source is not None:
        settings, stored = read_settings(Path(source)), find(Path(source), config).tensors
        _check_source(wanted, stored, Path(source))
    entries = {tensor.name: (_dtype(tensor, leaves, stored), tensor.shape) for tensor in wanted}
    if ships_tied_head(config) or (config.tied_embeddings and HEAD in stored):
        entries[HEAD] = entries[wanted[0].name]
        wanted = [*wanted, wanted[0]._replace(name=HEAD)]
    copied = {name: there for name, there in stored.items() if keep_mtp and name.startswith(DROPPED)}
    entries |= {name: (there.dtype, there.shape) for name, there in copied.items()}
    dtypes = [dtype for dtype, shape in entries.values() for _ in range(math.prod(shape) > 1)]
    values = config_to_hf(config, dtype=TORCH_NAMES[max(set(dtypes), key=dtypes.count)], source=settings)
    if not copied and "num_nextn_predict_layers" in values:
        values["num_nextn_predict_layers"] = 0
    with replaced(target) as fresh:
        if side_files or source:
            copy_side_files(Path(side_files or source), fresh)
        _write(fresh, entries, functools.partial(_content, {t.name: t for t in wanted}, copied, leaves, entries))
        # Last, so that no folder looks whole before it is.
        (fresh / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _check_target(target: Path, source: str | Path | None, side_files: str | Path | None) -> None:
    for other in (source, side_files):
        if other is not None:
            check_apart(target, Path(other))
    if side_files is not None and not Path(side_files).is_dir():
        raise FileNotFoundError(f"side_files={side_files} is no folder; give the one that holds the tokenizer.")
    if target.exists() and not is_checkpoint(target):
        raise FileExistsError(f"{target} exists and is no checkpoint, so it is not replaced; give another folder.")


def _check_source(wanted: Iterable[Tensor], stored: Mapping[str, Stored], source: Path) -> None:
    faults = [
        tensor.name for tensor in wanted if tensor.name not in stored or stored[tensor.name].shape != tensor.shape
    ]
    if faults:
        raise CheckpointError(
            f"the source {source} is of another model: it has no {', '.join(faults)} of the right shape; "
            "give the folder that the model came from."
        )


def _dtype(tensor: Tensor, leaves: Mapping[str, Any], stored: Mapping[str, Stored]) -> str:
    if tensor.name in stored:
        return stored[tensor.name].dtype
    return CODES[np.dtype(jnp.result_type(*(leaves[part.weight].dtype for part in tensor.parts)))]


def _write(folder: Path, entries: Mapping[str, tuple[str, tuple[int, ...]]], content: Any) -> None:
    """One file, or numbered ones with an index."""
    size = {name: math.prod(shape) * DTYPES[dtype].itemsize for name, (dtype, shape) in entries.items()}
    files: list[list[str]] = [[]]
    for name in entries:
        if files[-1] and sum(size[other] for other in files[-1]) + size[name] > SHARD_BYTES:
            files.append([])
        files[-1].append(name)
    titles = [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    if len(files) == 1:
        titles = ["model.safetensors"]
    for title, names in zip(titles, files, strict=True):
        # Wide dtypes first: then every tensor is aligned to its own width, which some readers rely on.
        names = sorted(names, key=lambda name: -DTYPES[entries[name][0]].itemsize)
        write_file(folder / title, {name: entries[name] for name in names}, content)
    if len(files) > 1:
        home = {name: title for title, names in zip(titles, files, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(size.values())}, "weight_map": home}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _content(
    wanted: Mapping[str, Tensor],
    copied: Mapping[str, Stored],
    leaves: Mapping[str, Any],
    entries: Mapping[str, tuple[str, tuple[int, ...]]],
    name: str,
) -> Iterator[bytes]:
    if name in copied:
        yield copied[name].read().tobytes()
        return
    for part in wanted[name].parts:
        leaf = leaves[part.weight]
        array = np.asarray(leaf if part.expert is None else leaf[part.expert])
        with np.errstate(over="ignore"):
            array = to_file(part.weight, array).astype(DTYPES[entries[name][0]])
        if part.expert is not None:  # padding stays here
            array = array[: part.rows, : wanted[name].shape[1]]
        if not np.isfinite(array).all():
            raise CheckpointError(f"{name} holds NaN, or infinity in {entries[name][0]}; nothing was written.")
        yield array.tobytes()
