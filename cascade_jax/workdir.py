"""The directory of a run belongs to one config and to one live process at a time."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_jax.config import CascadeConfig, ConfigError, to_dict
from cascade_jax.processes import of_first

OURS = {
    "config.json",
    "lock",
    "manifest.json",
    "report.html",
    "report.md",
    "stages",
    "tensorboard",
    "tokenizer.model",
    "tokenizer.new.model",
    "versions.json",
}


@contextlib.contextmanager
def claimed(workdir: Path, config: CascadeConfig) -> Iterator[None]:
    """Hold the work directory. ConfigError where it belongs to another config, to something else, or to a live run.

    Process 0 holds it for all.
    """
    with contextlib.ExitStack() as stack:
        of_first(lambda: stack.enter_context(_locked(workdir, config)))
        yield


@contextlib.contextmanager
def _locked(workdir: Path, config: CascadeConfig) -> Iterator[None]:
    if workdir.exists() and not workdir.is_dir():
        raise ConfigError(f"--workdir={workdir} is a file; give a directory.")
    known = workdir / "config.json"
    if known.exists():
        differing = _differences(json.loads(known.read_text()), json.loads(json.dumps(to_dict(config))))
        if differing:
            raise ConfigError(
                f"{workdir} holds a run with another config (it differs in {', '.join(differing[:5])}); "
                "choose another --workdir, or the same config to go on with it."
            )
    elif workdir.exists() and (foreign := sorted(p.name for p in workdir.iterdir() if p.name not in OURS)):
        raise ConfigError(
            f"{workdir} is no run directory and not empty (it holds {', '.join(foreign[:3])}); "
            "choose another --workdir."
        )
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{workdir} is in use by a live run; wait for it, or choose another --workdir.") from None
        yield


def _differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Dotted names of the settings that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [d for key in keys for d in _differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)]
    return [] if old == new else [where]
