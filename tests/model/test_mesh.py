"""Loss, gradient and one optimizer step on eight devices are those of one device, however the mesh splits the work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_jax.config import MeshConfig
from cascade_jax.mesh import use

ROOT = Path(__file__).parents[2]
FSDP, EXPERT = '{"fsdp": 8}', '{"data": 2, "expert": 4}'
ALL_THREE, SLICES = '{"expert": 2, "tensor": 2, "context": 2}', '{"slice": 2, "fsdp": 4}'


@pytest.mark.parametrize(
    ("net", "meshes"), [("hybrid", (FSDP, EXPERT, ALL_THREE, SLICES)), ("qwen3-moe", (EXPERT, ALL_THREE))]
)
def test_a_step_is_that_of_one_device(net: str, meshes: tuple[str, ...]) -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
    }
    command = [sys.executable, "-m", "tests.model.mesh_on_eight_devices", net, *meshes]
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == list(meshes)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expert 3 .*needs 3 devices and there are \d"):
        use(MeshConfig(expert=3))
