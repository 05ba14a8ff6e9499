import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from cascade_jax.checkpoint import save_model
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.model import presets
from tests.model.conftest import random_weights

ROOT = Path(__file__).parents[2]
MICRO = "--config=tests/runs/micro_cascade.py"


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.Popen]:
    """launch(module, *arguments): `python -m module ...` as a person types it. Compiled programs are kept.

    devices: of this process; output: a file in place of a pipe.
    """
    cache = tmp_path_factory.mktemp("compiled")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }

    def start(module: str, *arguments: str, devices: int = 1, output: Path | None = None) -> subprocess.Popen:
        # These runs are about files and signals: they compile for longer than they compute.
        flags = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={devices}"
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**environment, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE if output is None else output.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with half the layers of the tiny network, so that a run compiles in half the time."""
    folder = tmp_path_factory.mktemp("start")
    config = replace(presets.get("tiny"), pattern="ME*")
    params = jax.tree.map(jax.numpy.asarray, random_weights(config))
    tokenizer = train_tokenizer(folder / "tokenizer.model", seed=0, vocab_size=config.vocab_size)
    save_model(folder / "model", config, params, tokenizer=tokenizer.path)
    return folder / "model"


@pytest.fixture(scope="session")
def micro(start: Path) -> tuple[str, ...]:
    """The arguments of the micro cascade."""
    return (MICRO, "--config.model=", f"--config.checkpoint={start}")
