"""Kernels compiled ahead of time at the 30B model's shapes, for chips that are described and not there."""

import importlib.util
import json
from importlib import metadata
from pathlib import Path

import pytest

from pallas_kernels import ptx, schedule

SHAPES = "tests.kernels.shapes_30b:"
RECORD = Path(__file__).with_name("schedules_30b.json")
OPERATIONS = ("attention", "ssd", "experts", "logprob")
BACKWARD = {name: f"{SHAPES}{name}_backward" for name in OPERATIONS}  # each holds its forward kernels too


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install libtpu")
def test_schedules_are_not_longer() -> None:
    """On v5p, also: the matrix unit is busy in the hot loops, and few registers are spilled."""
    recorded = json.loads(RECORD.read_text())["libtpu"]
    if metadata.version("libtpu") != recorded:
        pytest.skip(f"needs libtpu {recorded}, of which the schedules are recorded, not {metadata.version('libtpu')}")
    found = schedule.compile_cases("v5p:1x1x1", list(BACKWARD.values()))
    assert schedule.longer(RECORD, "v5p:1x1x1", found) == []
    kernels = {name: found[case].kernels.values() for name, case in BACKWARD.items()}
    assert {name: len(of) for name, of in kernels.items()} == {"attention": 3, "ssd": 2, "experts": 5, "logprob": 2}
    for kernel in kernels["attention"]:
        assert kernel.hot >= 0.7 and kernel.spills < 0.05 * kernel.bundles
    for kernel in kernels["experts"]:
        assert kernel.hot >= 0.9 and kernel.spills < 0.05 * kernel.bundles


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None or ptx.assembler() is None,
    reason="needs jax-cuda13-plugin, jax-cuda13-pjrt and nvidia-cuda-nvcc (make kernels installs them)",
)
def test_gpu_kernels_use_the_matrix_unit() -> None:
    for kernels in ptx.compile_cases(list(BACKWARD.values())).values():
        assert len(kernels) >= 2
        for name, kernel in kernels.items():
            assert kernel.wgmma > 0
            assert kernel.spilled <= (1024 if name.startswith("ssd_backward") else 0)
