"""Block sizes out of data files: tuned/<operation>.json, by kind of device, dtype and shape.

A file holds {"default": sizes, "devices": {kind: {dtype: {"default": sizes, shape: sizes}}}}. What is more special
replaces what is more general, name by name, so "default" alone always works. `python -m pallas_kernels.autotune`
measures on the device that is there and writes the file.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.dispatch import target

FOLDER = Path(__file__).with_name("tuned")


class Trial(NamedTuple):
    """Sizes to try, by operation, and what was asked for: (operation, dtype, dimensions) -> sizes as filed."""

    sizes: Mapping[str, dict[str, int]]
    asked: dict[tuple[str, str, tuple[tuple[str, int], ...]], dict[str, int]]


_trial: ContextVar[Trial | None] = ContextVar("trial", default=None)


@contextmanager
def trying(sizes: Mapping[str, dict[str, int]]) -> Iterator[Trial]:
    """Programs that are traced inside take these sizes before those of the files."""
    trial = Trial(sizes, {})
    token = _trial.set(trial)
    try:
        yield trial
    finally:
        _trial.reset(token)


def blocks(operation: str, dtype: DTypeLike, **dims: int) -> dict[str, int]:
    """Block sizes of an operation for the device that is traced for and arrays of this dtype and these dimensions."""
    table, trial = _table(operation), _trial.get()
    here = table["devices"].get(target().kind, {}).get(jnp.dtype(dtype).name, {})
    sizes = {**table["default"], **here.get("default", {}), **here.get(shape_key(**dims), {})}
    if trial is None:
        return sizes
    trial.asked[operation, jnp.dtype(dtype).name, tuple(dims.items())] = sizes
    return sizes | trial.sizes.get(operation, {})


def shape_key(**dims: int) -> str:
    """The shape's name in a file: every dimension rounded up to a power of two, as "groups<=128 rows<=16384"."""
    return " ".join(f"{name}<={1 << max(0, size - 1).bit_length()}" for name, size in sorted(dims.items()))


def record(operation: str, dtype: DTypeLike, sizes: dict[str, int], folder: Path = FOLDER, **dims: int) -> None:
    """Writes measured block sizes for the present device into the operation's file."""
    path = folder / f"{operation}.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    device = table["devices"].setdefault(target().kind, {})
    device.setdefault(jnp.dtype(dtype).name, {})[shape_key(**dims)] = sizes
    path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _table.cache_clear()


@functools.cache
def _table(operation: str) -> dict:
    return json.loads((FOLDER / f"{operation}.json").read_text(encoding="utf-8"))
