"""Experts, rows and rollouts that are split among devices: their tests run in a process that has eight of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


@pytest.mark.parametrize("name", ["context", "exchange", "rollout"])
def test_on_eight_devices(name: str) -> None:
    tests = Path(__file__).with_name(f"{name}_on_eight_devices.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    child = subprocess.run(command, env=environment, cwd=tests.parents[2], capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stdout + child.stderr
