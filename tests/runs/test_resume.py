"""A run that is killed for real and started again ends with the bits of one that was never killed."""

import json
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from cascade_jax.checkpoint import load_model
from cascade_jax.config import LoRAConfig
from cascade_jax.leaves import by_path
from cascade_jax.model import lora
from tests.runs.micro_cascade import LORA, ORDER


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def status(workdir: Path, stage: str) -> str:
    manifest = workdir / "manifest.json"
    return json.loads(manifest.read_text())["stages"][stage]["status"] if manifest.exists() else "pending"


def writing_a_checkpoint(workdir: Path, stage: str) -> bool:
    """Orbax writes into a folder of another name and renames it; `final` is made beside its place too."""
    folder = workdir / "stages" / stage / "checkpoints"
    return folder.exists() and any(not p.name.isdigit() and p.name != "final" for p in folder.iterdir())


# Each: when to kill. The delays reach into the next rollout, reward or update.
MOMENTS = {
    "in the first step": lambda d: lines(d / "stages/sft/metrics.jsonl") >= 1,
    "in a checkpoint": lambda d: writing_a_checkpoint(d, "sft"),
    "between stages": lambda d: status(d, "sft") == "finished",
    "after a step without a checkpoint": lambda d: lines(d / "stages/if_rl/metrics.jsonl") >= 3,
    "in the evaluation": lambda d: (d / "stages/if_rl/checkpoints/final/config.json").exists(),
    "in distillation": lambda d: lines(d / "stages/mopd/metrics.jsonl") >= 1,
    "in the last stage": lambda d: lines(d / "stages/rlhf/metrics.jsonl") >= 2,
}


@pytest.fixture(scope="module")
def whole_run(launch, micro: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The micro cascade, never interrupted."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    process = launch("launch.run", *micro, f"--workdir={workdir}")
    output, _ = process.communicate(timeout=420)
    assert process.returncode == 0, output
    return workdir


@pytest.fixture(scope="module")
def killed_run(launch, micro: tuple[str, ...], whole_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("killed") / "run"
    for number, (moment, reached) in enumerate(MOMENTS.items()):
        process = launch("launch.run", *micro, f"--workdir={workdir}")
        deadline = time.monotonic() + 300
        while not reached(workdir):
            assert process.poll() is None, f"ended before it could be killed {moment}: {process.communicate()[0]}"
            assert time.monotonic() < deadline, f"never came to be killed {moment}"
            time.sleep(0.002)
        time.sleep(0.05 * (number % 3) if moment != "in a checkpoint" else 0)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = launch("launch.run", *micro, f"--workdir={workdir}")
    output, _ = process.communicate(timeout=420)
    assert process.returncode == 0, output
    return workdir


@pytest.mark.parametrize("stage", ORDER)
def test_parameters_are_the_same_bits(whole_run: Path, killed_run: Path, stage: str):
    one, other = (load_model(run / "stages" / stage / "checkpoints" / "final")[1] for run in (whole_run, killed_run))
    for (path, a), (_, b) in zip(*(jax.tree_util.tree_leaves_with_path(p) for p in (one, other)), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b)), f"{stage}: {jax.tree_util.keystr(path)} differs"


@pytest.mark.parametrize("stage", ORDER)
def test_metrics_and_samples_are_the_same(whole_run: Path, killed_run: Path, stage: str):
    def metrics(run: Path) -> list:
        records = map(json.loads, (run / "stages" / stage / "metrics.jsonl").read_text().splitlines())
        return [(record["step"], record["metrics"]) for record in records]

    assert metrics(whole_run) == metrics(killed_run)
    for name in ("samples.jsonl", "eval.json"):
        paths = [run / "stages" / stage / name for run in (whole_run, killed_run)]
        assert [p.read_bytes() if p.exists() else None for p in paths[:1]] == [
            p.read_bytes() if p.exists() else None for p in paths[1:]
        ]


def test_the_manifest_is_the_same_but_for_seconds(whole_run: Path, killed_run: Path):
    def manifest(run: Path) -> dict:
        values = json.loads((run / "manifest.json").read_text())
        for stage in values["stages"].values():
            assert stage.pop("seconds") > 0
        return values

    assert manifest(whole_run) == manifest(killed_run)
    assert manifest(whole_run)["status"] == "finished"


def test_a_finished_run_is_not_run_again(launch, micro: tuple[str, ...], whole_run: Path):
    before = (whole_run / "stages" / "rlhf" / "metrics.jsonl").stat().st_mtime_ns
    process = launch("launch.run", *micro, f"--workdir={whole_run}")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert (whole_run / "stages" / "rlhf" / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_saves_and_says_how_to_go_on(
    launch, micro: tuple[str, ...], whole_run: Path, tmp_path: Path, number: int
):
    workdir = tmp_path / "run"
    process = launch("launch.run", *micro, f"--workdir={workdir}")
    while not lines(workdir / "stages/sft/metrics.jsonl"):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == (75 if number == signal.SIGTERM else 0), output
    assert "The same command goes on from here" in output
    assert json.loads((workdir / "manifest.json").read_text())["status"] == "stopped"
    done = lines(workdir / "stages/sft/metrics.jsonl")
    assert (workdir / "stages/sft/checkpoints" / str(done)).exists()
    assert (workdir / "report.html").exists()


def test_an_occupied_work_directory(launch, micro: tuple[str, ...], whole_run: Path):
    before = (whole_run / "config.json").read_bytes()
    process = launch("launch.run", *micro, f"--workdir={whole_run}", "--config.seed=1")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "holds a run with another config (it differs in seed)" in output
    assert (whole_run / "config.json").read_bytes() == before


def test_a_stage_of_adapters_changes_its_targets_alone_and_by_low_rank(whole_run: Path):
    before, after = (
        by_path(load_model(whole_run / "stages" / stage / "checkpoints" / "final")[1]) for stage in ("mopd", "rlhf")
    )
    targets = lora.targets(after, LoRAConfig(**LORA))
    for path in before:
        change = np.asarray(after[path], np.float64) - np.asarray(before[path])
        if path not in targets:
            assert not change.any(), path
            continue
        sizes = np.linalg.svd(change, compute_uv=False)
        assert (sizes[..., 0] > 0).any(), path
        rounding = np.finfo(np.float32).eps * np.abs(after[path]).max() * max(change.shape[-2:])
        assert (sizes[..., LORA["rank"] :] < rounding).all(), path


def test_its_sampler_runs_the_same_unmerged_weights(whole_run: Path):
    lines = (whole_run / "stages" / "rlhf" / "metrics.jsonl").read_text().splitlines()
    gaps = [json.loads(line)["metrics"]["sampler_gap_kl"] for line in lines]
    assert len(gaps) == 3 and max(gaps) < 1e-8
