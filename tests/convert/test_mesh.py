"""A folder read onto eight devices, in a process that has as many; and the two big networks, without a byte of them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from cascade_jax.model import apply, presets
from cascade_jax.model.convert import tensor_shapes
from tests.convert.files import read_folder

ROOT = Path(__file__).parents[2]
CHILD = """
import sys
import jax, numpy as np
from cascade_jax.mesh import make_mesh, shardings
from cascade_jax.model import apply
from cascade_jax.model.convert import load_hf, save_hf

mesh = make_mesh(fsdp=2, expert=2, tensor=2)
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    config, params = load_hf(source, mesh=mesh)
    same, alone = load_hf(source)
    assert config == same

    def check(leaf, sharding, whole):
        assert leaf.sharding == sharding, (leaf.sharding, sharding)
        assert {s.data.shape for s in leaf.addressable_shards} == {sharding.shard_shape(whole.shape)}
        assert leaf.dtype == whole.dtype
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(whole))

    jax.tree.map(check, params, shardings(apply.logical_axes(config), mesh), alone)
    split = [leaf for leaf in jax.tree.leaves(params) if not leaf.is_fully_replicated]
    print(len(jax.devices()), len(split), flush=True)
    save_hf(target, config, params, source=source)
"""


def test_every_weight_goes_straight_to_its_place_on_the_mesh(written: Callable[[str], Path], tmp_path: Path) -> None:
    names = ["nemotron", "nemotron-tied", "qwen3-moe"]
    folders = [str(path) for name in names for path in (written(name), tmp_path / name)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", CHILD, *folders]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    lines = [line.split() for line in child.stdout.splitlines()]
    assert [devices for devices, _ in lines] == ["8"] * len(names)
    assert all(int(split) > 10 for _, split in lines)
    for name in names:  # written from the mesh
        assert read_folder(tmp_path / name) == read_folder(written(name))


@pytest.mark.parametrize(
    ("preset", "tensors", "parameters"),
    [
        ("nemotron-3-nano-30b-a3b", 6_243, 31_577_940_288),
        ("qwen3-30b-a3b", 18_867, 30_532_122_624),
        ("qwen3-0.6b", 310, 596_049_920),
        ("smollm2-135m", 272, 134_515_008),
    ],
)
def test_a_preset_names_all_its_tensors_and_allocates_nothing(preset: str, tensors: int, parameters: int) -> None:
    before = sum(array.nbytes for array in jax.live_arrays())
    config = presets.get(preset)
    shapes = tensor_shapes(config)
    leaves = jax.tree.leaves(apply.abstract(config))
    assert sum(array.nbytes for array in jax.live_arrays()) <= before
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) == parameters
    assert len(shapes) == tensors
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == parameters


def test_names_and_shapes_of_the_30b_network() -> None:
    """model_spec.md 6; layers 0, 1 and 5 are M, E and *."""
    shapes = tensor_shapes(presets.get("nemotron-3-nano-30b-a3b"))
    for name, shape in {
        "backbone.embeddings.weight": (131072, 2688),
        "backbone.layers.0.norm.weight": (2688,),
        "backbone.layers.0.mixer.in_proj.weight": (10304, 2688),
        "backbone.layers.0.mixer.conv1d.weight": (6144, 1, 4),
        "backbone.layers.0.mixer.conv1d.bias": (6144,),
        "backbone.layers.0.mixer.A_log": (64,),
        "backbone.layers.0.mixer.D": (64,),
        "backbone.layers.0.mixer.dt_bias": (64,),
        "backbone.layers.0.mixer.norm.weight": (4096,),
        "backbone.layers.0.mixer.out_proj.weight": (2688, 4096),
        "backbone.layers.1.mixer.gate.weight": (128, 2688),
        "backbone.layers.1.mixer.gate.e_score_correction_bias": (128,),
        "backbone.layers.1.mixer.experts.127.up_proj.weight": (1856, 2688),
        "backbone.layers.1.mixer.experts.127.down_proj.weight": (2688, 1856),
        "backbone.layers.1.mixer.shared_experts.up_proj.weight": (3712, 2688),
        "backbone.layers.1.mixer.shared_experts.down_proj.weight": (2688, 3712),
        "backbone.layers.5.mixer.q_proj.weight": (4096, 2688),
        "backbone.layers.5.mixer.k_proj.weight": (256, 2688),
        "backbone.layers.5.mixer.o_proj.weight": (2688, 4096),
        "backbone.norm_f.weight": (2688,),
        "lm_head.weight": (131072, 2688),
    }.items():
        assert shapes[name] == shape
