"""Plans of machines that are not here: our own counts against the network's, and compilers that are really asked."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from cascade_jax.config import MeshConfig
from cascade_jax.leaves import by_path
from cascade_jax.model import apply, presets
from cascade_jax.plan.chips import CHIPS, described
from cascade_jax.plan.flops import Work, decoding_work, forward_flops, multiplied, training_work, weights
from cascade_jax.plan.ledger import ledger
from cascade_jax.plan.roofline import roofline

ROOT = Path(__file__).parents[1]
NANO = presets.get("nemotron-3-nano-30b-a3b")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_the_count_of_weights_is_that_of_the_matrices(name: str) -> None:
    config = presets.get(name)
    leaves = by_path(apply.abstract(config))
    matrices = sum(leaf.size for path, leaf in leaves.items() if leaf.ndim > 1 and "conv_weight" not in path)
    assert sum(weights(config).values()) == matrices


def test_the_published_counts_of_the_30b() -> None:
    assert sum(multiplied(NANO).values()) == pytest.approx(3.23e9, rel=5e-3)
    for length, published in ((4096, 20.2e9), (8192, 20.8e9), (131_072, 38.9e9), (2**20, 174e9)):
        assert 3 * sum(forward_flops(NANO, length / 2).values()) == pytest.approx(published, rel=5e-3)


def test_flop_of_a_dense_network_are_what_a_compiler_counts() -> None:
    config = presets.ModelConfig(
        vocab_size=512, width=128, pattern="*-", heads=4, kv_heads=2, head_dim=32, mlp_width=512
    )
    ids = jax.ShapeDtypeStruct((1, 256), "int32")
    run = jax.jit(lambda params, ids: apply.logits(config, params, apply.hidden(config, params, ids)[0]))
    counted = run.lower(apply.abstract(config), ids).compile().cost_analysis()["flops"]
    ours = 256 * sum(forward_flops(config, 256).values())  # a compiler counts the masked half of the scores too
    assert ours == pytest.approx(counted, rel=0.06)


def test_work_follows_the_mesh() -> None:
    alone = training_work(NANO, MeshConfig(), rows=8, length=4096, passes=1)
    split = training_work(NANO, MeshConfig(fsdp=2, expert=4), rows=8, length=4096, passes=1)
    assert {part: work.links for part, work in alone.items()} == dict.fromkeys(alone, 0.0)
    for part, work in split.items():
        assert work.flops == pytest.approx(alone[part].flops / 8)
        assert work.links > 0 or part in ("optimizer", "mlp")
    # Each device sends a token at most once to each of the three other ranks.
    exchanged = (
        split["experts"].links - training_work(NANO, MeshConfig(fsdp=8), rows=8, length=4096, passes=1)["experts"].links
    )
    assert exchanged < 5 * 4096 * 23 * 3 * 2688 * 2
    few, many = (decoding_work(NANO, MeshConfig(), rows=rows, context=1000) for rows in (1, 64))
    assert few["experts"].memory == many["experts"].memory and few["mamba"].memory < many["mamba"].memory


def test_the_slowest_resource_bounds_a_part() -> None:
    chip = CHIPS["v5p"]
    parts = roofline(chip, {"a": Work(459e12, 1.0, 1.0), "b": Work(1.0, 2.765e12 * 2, 1.0), "none": Work()})
    assert {name: (part.bound, part.seconds) for name, part in parts.items()} == {
        "a": ("compute", 1.0),
        "b": ("memory", 2.0),
    }


def test_the_ledger_reads_every_kind() -> None:
    text = """
      %1 = "stablehlo.all_gather"(%0) <{groups = dense<0> : tensor<1x2xi64>}> : (tensor<4x8xbf16>) -> tensor<8x8xbf16>
      %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        stablehlo.return %a : tensor<f32>
      }) : (tensor<10xf32>) -> tensor<10xf32>
      %3 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>}> ({
      }) : (tensor<10xf32>) -> tensor<10xf32>
      %4 = stablehlo.custom_call @ragged_all_to_all(%1) : (tensor<4xf32>) -> tensor<6xf32>
    """
    found = {kind: (each.count, each.largest) for kind, each in ledger(text).items()}
    assert found == {"all_gather": (1, 128), "all_reduce": (1, 40), "ragged_all_to_all": (1, 24)}


def test_a_compiler_that_is_not_here_is_named() -> None:
    try:
        import jax_plugins.xla_cuda13  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r"h200 cannot be compiled for here .*cascade-jax\[cuda\]"):
            described("h200", (8,), 1)


def plan(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "launch.plan", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)


def test_a_plan_is_compiled_once_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install libtpu")
    arguments = (
        "--config=configs/tiny_cascade.py",
        "--topology=v5e:2x2",
        "--stages=sft",
        f"--json={tmp_path}/plan.json",
    )
    first = plan(tmp_path, *arguments)
    assert first.returncode == 0, first.stderr
    assert "fits" in first.stdout and "chip-hours" in first.stdout
    (result,) = json.loads((tmp_path / "plan.json").read_text())
    (step,) = result["steps"].values()
    assert 0 < step["arguments"] < step["peak"] < 2**30 and step["collectives"]["all_gather"]["count"] > 0
    (kept,) = (tmp_path / ".cache/cascade_jax/plan").glob("*.json")
    kept.write_text(kept.read_text().replace(f'"peak": {step["peak"]}', '"peak": 77'))
    second = plan(tmp_path, *arguments)
    assert second.returncode == 0, second.stderr
    (again,) = json.loads((tmp_path / "plan.json").read_text())
    assert again["steps"]["sft/update"] == {**step, "peak": 77}


@pytest.mark.parametrize("machine", ["v5p-4x4x4"])
def test_the_recorded_plan_of_the_30b_still_holds(tmp_path: Path, machine: str) -> None:
    """A program that is the recorded one is not compiled again: lowering it takes seconds, compiling it minutes.

    After a change of the network: the command of each file in launch/plans, with --json=FILE.
    """
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install libtpu")
    (recorded,) = json.loads((ROOT / f"launch/plans/{machine}.json").read_text())
    if recorded["jax"] != jax.__version__:
        pytest.skip(f"needs jax {recorded['jax']}, whose programs and compiler the plan was made with")
    kept = tmp_path / ".cache/cascade_jax/plan"
    kept.mkdir(parents=True)
    for step in recorded["steps"].values():
        (kept / f"{step['program']}.json").write_text(json.dumps(step))
    child = plan(tmp_path, *recorded["command"], f"--json={tmp_path}/plan.json")
    assert child.returncode == 0, child.stderr
    (again,) = json.loads((tmp_path / "plan.json").read_text())
    assert again["steps"].keys() == recorded["steps"].keys()
    for name, step in again["steps"].items():
        assert step["peak"] == pytest.approx(recorded["steps"][name]["peak"], rel=0.02), name
        assert step["collectives"] == recorded["steps"][name]["collectives"], name


@pytest.mark.parametrize("file", sorted((ROOT / "launch/plans").glob("*.json")), ids=lambda file: file.stem)
def test_recorded_plans_fit(file: Path) -> None:
    """Each step within 80 % of the memory, and no sum over devices of more than numbers that are reported."""
    (recorded,) = json.loads(file.read_text())
    memory = CHIPS[recorded["topology"].partition(":")[0]].memory
    assert recorded["steps"]
    for name, step in recorded["steps"].items():
        assert 0 < step["arguments"] < step["peak"] <= 0.8 * memory and not step["refused"], name


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--topology is missing"),
        (("--topology=v9:2x2",), "topology='v9:2x2' is not known"),
        (("--topology=v5e:2x2", "--stages=nothing"), "there is no stage 'nothing'"),
        (("--topology=v5e:2x2", "--config.mesh.context=3"), "does not divide the 4 devices"),
        (("--topology=v5p:8x8x8", "--config.mesh.context=512"), "does not divide width"),
        (("--topology=v5e:2x2", "--config.model=", "--config.checkpoint=nowhere"), "--model="),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    child = plan(tmp_path, "--config=configs/tiny_cascade.py", *arguments)
    assert (child.returncode, len(child.stderr.splitlines())) == (2, 1), child.stderr
    assert child.stderr.startswith("error: ") and sentence in child.stderr


def test_time_needs_no_compiler(tmp_path: Path) -> None:
    child = plan(
        tmp_path,
        "--config=configs/nemotron_cascade2_30b.py",
        "--model=nemotron-3-nano-30b-a3b",
        "--topology=v5p:4x4x4,v6e:8x8",
        "--time_only",
        f"--json={tmp_path}/plan.json",
    )
    assert child.returncode == 0, child.stderr
    small, other = json.loads((tmp_path / "plan.json").read_text())
    assert math.isclose(sum(s["steps"] * s["step"] for s in small["stages"].values()) / 0.5 / 86_400, small["days"])
    assert other["mesh"] == {"slice": 1, "data": 1, "fsdp": 1, "expert": 8, "tensor": 1, "context": 8}
