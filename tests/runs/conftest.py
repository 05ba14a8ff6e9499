import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MICRO = "--config=tests/runs/micro_cascade.py"


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.Popen]:
    """launch(module, *arguments): `python -m module ...` as a person types it. Compiled programs are kept."""
    cache = tmp_path_factory.mktemp("compiled")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }

    def start(module: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


@pytest.fixture(scope="session")
def whole_run(launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro cascade, never interrupted."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    process = launch("launch.run", MICRO, f"--workdir={workdir}")
    output, _ = process.communicate(timeout=420)
    assert process.returncode == 0, output
    return workdir
