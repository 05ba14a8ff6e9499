"""A cascade with an environment of several turns: what its stages train on, log and show, and what stops them."""

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cascade_jax.cascade import run_cascade
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.rollout.environment import Trajectory, unfinished
from cascade_jax.stages.batches import mean
from cascade_jax.stages.context import Unjudged
from cascade_jax.stages.rollouts import broken_share, episode_metrics
from cascade_jax.types import Group, Prompt, Reply, Row, Sample, Verdict
from tests.runs import episode_cascade


@pytest.fixture(scope="module", autouse=True)
def environment():
    """The table as it was is put back after these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS, "math", episode_cascade.Chatter)
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    episode_cascade.write_rows(path)
    return path


@pytest.fixture(scope="module")
def command(launch, start: Path, rows: Path) -> Callable[..., subprocess.Popen]:
    """command(workdir, only="", *more): the run, or a stage of it, as a person starts it."""

    def begin(workdir: Path, only: str = "", *more: str) -> subprocess.Popen:
        return launch(
            "launch.run",
            f"--config=tests/runs/episode_cascade.py:{only}",
            f"--workdir={workdir}",
            "--config.model=",
            f"--config.checkpoint={start}",
            *(f"--config.domains.talk.{split}.path={rows}" for split in ("train", "validation")),
            *more,
        )

    return begin


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    workdir = tmp_path_factory.mktemp("episodes") / "whole"
    process = command(workdir)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return workdir


def log(workdir: Path, stage: str, name: str) -> list[dict]:
    path = workdir / "stages" / stage / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def metrics(workdir: Path, stage: str) -> list[dict]:
    return [line["metrics"] for line in log(workdir, stage, "metrics.jsonl")]


def test_stages_train_on_episodes(whole: Path):
    for stage in ("rl", "mopd"):
        for step in metrics(whole, stage):
            assert 1 < step["turns"] <= 3 and step["chain_breaks"] == 0 == step["no_verdict"] == step["masked"]
            assert step["sampler_gap_kl"] < 1e-6 and step["unknown_fraction"] == 0
    assert all(step["groups_kept"] > 0 for step in metrics(whole, "rl"))
    assert metrics(whole, "sft")[-1]["nll"] < 1 < 5 < metrics(whole, "sft")[0]["nll"]


def test_transcripts_show_the_turns(whole: Path):
    scores = json.loads((whole / "stages/rl/eval.json").read_text())
    assert scores["results"]["validation"]["talk"]["count"] == 4
    shown = scores["samples"]["validation"]
    turns = [sample["turns"] for sample in shown if sample["domain"] == "talk"]
    assert any([who for who, _ in one][:3] == ["assistant", "environment", "assistant"] for one in turns)
    heard = [text for one in turns for who, text in one if who == "environment"]
    assert heard and all(any(said in text for said in episode_cascade.SAID) for text in heard)
    assert "<pre class=environment>" in (whole / "report.html").read_text()


def test_what_breaks_step_after_step_stops_the_stage(command, tmp_path: Path):
    """As a person sees it: a note for each step, one sentence, exit code 1, and the report is there."""
    workdir = tmp_path / "run"
    process = command(
        workdir,
        "rl",
        "--config.domains.talk.settings.broken=True",
        "--config.stages.rl.alarm_steps=2",
        "--config.stages.rl.alarm_share=0.4",
    )
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    [error] = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "stage rl, step 2" in error and "for 2 steps in a row" in error and "alarm_share=0.4" in error
    notes = log(workdir, "rl", "notes.jsonl")
    assert [note["step"] for note in notes] == [1, 2]
    assert "100 % of the samples had no verdict" in notes[0]["text"]
    assert output.count("had no verdict, more than alarm_share") == 3, "two notes and the error"
    assert "4 of 4 samples of talk (validation) had no verdict." in output
    for name in ("report.html", "report.md"):
        assert "100 % of the samples had no verdict" in (workdir / name).read_text()


def test_successes_that_a_limit_cut_off_are_masked_and_no_alarm():
    """Their share is known apart from that of what broke, which alone is alarming."""

    def sample(stop: str, verdict: Verdict) -> Sample:
        trajectory = Trajectory((Reply("x"),), (), stop)
        ids, stop_reason = np.array([1], np.int32), "stop" if stop == "done" else stop
        verdict = unfinished(verdict, trajectory)
        return Sample(ids, np.zeros(1, np.float32), np.ones(1, bool), stop_reason, 0, verdict=verdict)

    broken = Verdict(np.nan, no_verdict="the sandbox is gone")
    samples = [sample("done", Verdict(1.0)), sample("turns", Verdict(1.0)), sample("length", Verdict(1.0))]
    samples += [sample("turns", Verdict(0.0)), sample("done", broken)]
    found = [s.verdict for s in samples]
    assert [v.no_verdict is None for v in found] == [True, False, False, True, False]
    assert "limit of turns" in found[1].no_verdict and np.isnan(found[1].reward) and found[3].reward == 0.0
    group = Group(Prompt(np.array([1], np.int32), Row("r", "k", ()), "d"), tuple(samples))
    metrics = {**episode_metrics([group]), "no_verdict": mean([v.no_verdict is not None for v in found])}
    assert float(metrics["masked"].mean) == pytest.approx(0.4) and broken_share(metrics) == pytest.approx(0.2)
    assert broken_share({}) == 0.0


def test_nothing_written_is_nothing_trained(start: Path, rows: Path, tmp_path: Path):
    """A distillation step without a single token counts as a step, until the alarm."""
    config = episode_cascade.built(start, rows, broken=True)
    sft = dataclasses.replace(config.stages["sft"], steps=1)
    mopd = dataclasses.replace(config.stages["mopd"], domains={"talk": 1.0}, alarm_steps=2)
    config = dataclasses.replace(config, order=("sft", "mopd"), stages={"sft": sft, "mopd": mopd})
    with pytest.raises(Unjudged, match="stage mopd"):
        run_cascade(config, tmp_path / "run")
    assert [step["no_verdict"] for step in metrics(tmp_path / "run", "mopd")] == [1.0, 1.0]
