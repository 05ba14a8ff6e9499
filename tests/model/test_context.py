"""Rows that are split among devices, in a process that has eight of them."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("context_on_eight_devices.py")
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


def test_on_eight_devices() -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    child = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stdout + child.stderr
