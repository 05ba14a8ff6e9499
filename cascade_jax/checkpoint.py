"""Orbax checkpoints: the state of a stage with its data position; a finished model with config and tokenizer."""

import json
import os
import shutil
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from cascade_jax.config import ConfigError, ModelConfig, build
from cascade_jax.model import apply
from cascade_jax.types import Params, TrainState

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


def save_state(directory: Path, state: TrainState, position: dict[str, Any], *, keep: int = 2) -> None:
    """Write `directory/STEP` (a broken write never counts), then drop all but the newest `keep` steps."""
    step = int(state.step)
    target = directory / str(step)
    if not target.exists():
        ocp.save_checkpointables(
            target.absolute(), {"state": _as_dict(state), "position": {"json": json.dumps(position)}}
        )
    for old in _steps(directory)[:-keep]:
        shutil.rmtree(directory / str(old))


def latest_step(directory: Path) -> int | None:
    """The newest whole checkpoint of a stage; leftovers of a killed write are removed."""
    if directory.exists():
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.name.isdigit() and entry.name != "final":
                shutil.rmtree(entry)
    return max(_steps(directory), default=None)


def restore_state(directory: Path, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
    """The state and data position of `directory/step`; `like` gives shapes, dtypes and shardings."""
    abstract = jax.tree.map(_abstract, _as_dict(like))
    loaded = _load((directory / str(step)).absolute(), {"state": abstract, "position": None})
    return TrainState(**loaded["state"]), json.loads(loaded["position"]["json"])


def save_model(path: Path, config: ModelConfig, params: Params, *, tokenizer: Path | None) -> None:
    """A model directory: `params/` (Orbax), `config.json`, the tokenizer under its standard name. Replaces `path`."""
    path = Path(path).absolute()
    fresh = path.with_name(path.name + ".new")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    ocp.save(fresh / "params", params)
    (fresh / "config.json").write_text(json.dumps(asdict(config), indent=1))
    if tokenizer is not None:
        shutil.copyfile(tokenizer, fresh / f"tokenizer{Path(tokenizer).suffix}")
    if path.exists():
        shutil.rmtree(path)
    os.replace(fresh, path)


def load_model(path: Path) -> tuple[ModelConfig, Params, Path | None]:
    """What `save_model` wrote: the config, the params and the path of the tokenizer (None if it has none)."""
    path = Path(path).absolute()
    if not (path / "config.json").exists():
        raise FileNotFoundError(
            f"{path} is not a model checkpoint (no config.json); make one with python -m launch.convert, "
            "or point at runs/NAME/stages/STAGE/checkpoints/final."
        )
    values = json.loads((path / "config.json").read_text())
    try:
        config = build(ModelConfig, values, str(path / "config.json"))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    abstract = jax.tree.map(_abstract, apply.abstract(config))
    params = _load_pytree(path / "params", abstract)
    tokenizer = next((path / name for name in TOKENIZER_FILES if (path / name).exists()), None)
    return config, params, tokenizer


def _steps(directory: Path) -> list[int]:
    return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit()) if directory.exists() else []


def _as_dict(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "optimizer_state": state.optimizer_state, "step": state.step}


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)


def _load(path: Path, abstract: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        return ocp.load_checkpointables(path, abstract)


def _load_pytree(path: Path, abstract: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sharding info not provided")
        return ocp.load(path, abstract)
