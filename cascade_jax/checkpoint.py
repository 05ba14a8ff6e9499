"""Orbax checkpoints: the state of a stage with its data position; a finished model with config and tokenizer."""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from cascade_jax.config import ConfigError, ModelConfig, build
from cascade_jax.folder import replaced
from cascade_jax.leaves import by_path, misfits, with_leaves
from cascade_jax.mesh import shardings
from cascade_jax.model import apply
from cascade_jax.model.convert import load_hf
from cascade_jax.model.convert.carried import copy_side_files
from cascade_jax.model.convert.load import read_config as read_hf_config
from cascade_jax.model.convert.load import read_settings, runnable
from cascade_jax.processes import is_first, of_first
from cascade_jax.types import Params, TrainState

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


def save_state(
    directory: Path,
    state: TrainState,
    position: dict[str, Any],
    *,
    keep: int = 2,
    frozen: Callable[[str], bool] | None = None,
) -> None:
    """Write `directory/STEP` (a broken write never counts), then drop all but the newest `keep` steps.

    Frozen weights, by path, are left out: they lie in the checkpoint that the stage began from.
    """
    step = int(state.step)
    target = directory / str(step)
    if not of_first(target.exists):
        ocp.save_checkpointables(
            target.absolute(), {"state": _as_dict(state, frozen), "position": {"json": json.dumps(position)}}
        )
    for old in _steps(directory)[:-keep] if is_first() else ():
        shutil.rmtree(directory / str(old))


def latest_step(directory: Path) -> int | None:
    """The newest whole checkpoint of a stage; leftovers of a killed write are removed."""
    return of_first(lambda: _latest(directory))


def _latest(directory: Path) -> int | None:
    if directory.exists():
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.name.isdigit() and entry.name != "final":
                shutil.rmtree(entry)
    return max(_steps(directory), default=None)


def restore_state(
    directory: Path, step: int, like: TrainState, *, frozen: Callable[[str], bool] | None = None
) -> tuple[TrainState, dict[str, Any]]:
    """The state and data position of `directory/step`; `like` gives frozen weights, shapes, dtypes and shardings."""
    abstract = jax.tree.map(_abstract, _as_dict(like, frozen))
    with _quiet():
        loaded = ocp.load_checkpointables((directory / str(step)).absolute(), {"state": abstract, "position": None})
    state = loaded["state"]
    restored = TrainState(
        with_leaves(like.params, state["params"]),
        with_leaves(like.optimizer_state, state["optimizer_state"]),
        state["step"],
    )
    return restored, json.loads(loaded["position"]["json"])


def save_model(
    path: Path, config: ModelConfig, params: Params, *, tokenizer: Path | None = None, side_files: Path | None = None
) -> None:
    """A model directory: `params/` (Orbax), `config.json`, tokenizer, chat template and the like. Replaces `path`.

    `tokenizer` is copied under its standard name, with the files beside it that belong to a model, or in `side_files`.
    """
    with _filled_by_all(Path(path)) as fresh:
        ocp.save(fresh / "params", params)
        if not is_first():
            return
        beside = side_files or (None if tokenizer is None else Path(tokenizer).parent)
        if beside is not None:
            copy_side_files(beside, fresh, settings=True)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, fresh / f"tokenizer{Path(tokenizer).suffix}")
        (fresh / "config.json").write_text(json.dumps(asdict(config), indent=1))


@contextlib.contextmanager
def _filled_by_all(path: Path) -> Iterator[Path]:
    """`replaced` by process 0; Orbax returns to each process when all have written."""
    with contextlib.ExitStack() as stack:
        yield of_first(lambda: stack.enter_context(replaced(path)))
        of_first(stack.close)


def load_model(path: Path, *, dtype: Any = None) -> tuple[ModelConfig, Params, Path | None]:
    """What `save_model` wrote, or a Hugging Face folder: config, params, path of the tokenizer (None if it has none).

    dtype None keeps the stored dtypes.
    """
    path = Path(path).absolute()
    tokenizer = find_tokenizer(path)
    if is_hugging_face(path):
        mesh = jax.sharding.get_mesh()
        config, params = load_hf(path, mesh=mesh if mesh.size > 1 else None, dtype=dtype)
        wider = apply.pad_experts(config)
        return wider, params if wider == config else apply.grown(wider, params), tokenizer
    config = read_config(path)
    kinds = _stored_kinds(path, config, dtype)
    with _quiet():
        params = ocp.load(path / "params", _placed(config, kinds))
    return runnable(config), params, tokenizer


def read_config(path: Path) -> ModelConfig:
    """The network of a checkpoint of ours or of a Hugging Face folder, without its weights."""
    file = path / "config.json"
    if not file.exists():
        raise FileNotFoundError(
            f"{path} is no checkpoint (no config.json); give a Hugging Face folder, the output of "
            "python -m launch.convert, or runs/NAME/stages/STAGE/checkpoints/final."
        )
    if is_hugging_face(path):
        return read_hf_config(path)
    try:
        return build(ModelConfig, read_settings(path), str(file))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def find_tokenizer(folder: Path) -> Path | None:
    """The tokenizer of a checkpoint's folder, if it has one."""
    return next((folder / name for name in TOKENIZER_FILES if (folder / name).exists()), None)


def is_hugging_face(path: Path) -> bool:
    """Whether the folder is theirs: our own checkpoints keep their weights in `params/`."""
    return (path / "config.json").exists() and not (path / "params").is_dir()


def _steps(directory: Path) -> list[int]:
    return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit()) if directory.exists() else []


def _as_dict(state: TrainState, frozen: Callable[[str], bool] | None) -> dict[str, Any]:
    params = {path: leaf for path, leaf in by_path(state.params).items() if frozen is None or not frozen(path)}
    return {"params": params, "optimizer_state": by_path(state.optimizer_state), "step": state.step}


def _stored_kinds(path: Path, config: ModelConfig, dtype: Any) -> Params:
    """The tree of params with the dtypes that are stored. ValueError lists the weights that the config does not fit."""
    stored, wanted = ocp.metadata(path / "params").metadata, apply.abstract(config)
    faults = misfits(stored, wanted)
    if faults:
        raise ValueError(f"{path / 'params'} does not fit {path / 'config.json'}: {', '.join(faults)}.")
    return jax.tree.map(lambda leaf, there: leaf.update(dtype=dtype or there.dtype), wanted, stored)


def _placed(config: ModelConfig, kinds: Params) -> Params:
    """ShapeDtypeStructs with the places that the mesh in use gives to weights."""
    mesh = jax.sharding.get_mesh()
    if mesh.size <= 1:
        return jax.tree.map(_abstract, kinds)
    places = shardings(apply.logical_axes(config), mesh)
    return jax.tree.map(lambda leaf, place: leaf.update(sharding=place), kinds, places)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns of shardings that it is not told of; the data position has none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        yield
