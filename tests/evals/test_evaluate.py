"""launch.evaluate on a tiny checkpoint: the same file however often it is killed, and judged again without a model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from launch import evaluate

from .conftest import ROWS

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--thinking=no", "--samples=2", "--max_tokens=5", "--batch=2", "--temperature=1", "--top_p=1"]


def run(*arguments):
    return evaluate.main([str(a) for a in arguments])


def flags(checkpoint, rows_file, out, *more):
    return [f"--benchmark={rows_file}", f"--checkpoint={checkpoint}", f"--out={out}", *SMALL, *more]


def command(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "launch.evaluate", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's `&` has it ignored
    )


@pytest.fixture(scope="module")
def whole(checkpoint, rows_file, tmp_path_factory):
    """An evaluation that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    assert run(*flags(checkpoint, rows_file, out)) == 0
    return out


def records(out, name="rows"):
    return [json.loads(line) for line in (out / name / "samples.jsonl").read_text().splitlines()]


def test_a_line_has_all_of_its_sample(whole):
    found = records(whole)
    assert [(r["row"], r["sample"]) for r in found] == [(f"row-{i}", j) for i in range(ROWS) for j in range(2)]
    for record in found:
        assert record["tokens"] == len(record["ids"]) <= 5 and record["stop_reason"] in ("stop", "length")
        assert record["settings"]["sampling"]["max_tokens"] == 5 and record["settings"]["benchmark"] == "rows"
        assert record["verdict"]["reward"] in (0.0, 1.0) and record["verdict"]["no_verdict"] is None
        assert record["reply"]["content"] in record["text"] and record["prompt_tokens"] > 0
    assert len({r["seed"] for r in found}) == ROWS and {r["draw"] for r in found} == {0, 1}
    assert {r["verdict"]["reward"] for r in found} == {0.0, 1.0}  # or the tests below would see little


def test_scores_are_those_of_the_lines(whole):
    [scores] = json.loads((whole / "scores.json").read_text())
    rewards = np.array([r["verdict"]["reward"] for r in records(whole)]).reshape(ROWS, 2)
    assert scores["avg@k"]["value"] == pytest.approx(100 * rewards.mean())
    assert scores["pass@k"]["2"]["value"] == pytest.approx(100 * rewards.max(1).mean())
    assert scores["pass@k"]["1"]["value"] == pytest.approx(scores["avg@k"]["value"])
    assert scores["avg@k"]["low"] < scores["avg@k"]["value"] < scores["avg@k"]["high"]
    assert scores["truncated"] == sum(r["stop_reason"] == "length" for r in records(whole))
    assert scores["tokens"]["total"] == sum(r["tokens"] for r in records(whole))
    assert scores["no_verdict"] == 0 and scores["alarm"] is False
    assert f"{scores['avg@k']['value']:.1f} [" in (whole / "scores.md").read_text()


def test_killed_and_started_again_it_writes_the_same_file(whole, checkpoint, rows_file, tmp_path):
    arguments = flags(checkpoint, rows_file, tmp_path)
    file = tmp_path / "rows" / "samples.jsonl"
    process = command(*arguments)
    wait_for(file, process)
    process.send_signal(signal.SIGKILL)
    output = process.communicate()[0]
    written = file.read_bytes()
    assert process.returncode == -signal.SIGKILL and 0 < written.count(b"\n") < 2 * ROWS, output
    with file.open("ab") as opened:  # the next batch, whose last line the disk has half of
        following = (whole / "rows" / "samples.jsonl").read_bytes()[len(written) :]
        opened.write(following[: len(following.split(b"\n")[0]) + 40])
    assert run(*arguments) == 0
    assert file.read_bytes() == (whole / "rows" / "samples.jsonl").read_bytes()
    assert (tmp_path / "scores.json").read_bytes() == (whole / "scores.json").read_bytes()


def wait_for(file, process=None):
    """Until something is written."""
    deadline = time.monotonic() + 120
    while not (file.exists() and file.stat().st_size) and (process is None or process.poll() is None):
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 75)])
def test_a_stop_says_how_to_go_on(number, code, checkpoint, rows_file, tmp_path, capsys):
    file = tmp_path / "rows" / "samples.jsonl"
    before = signal.signal(signal.SIGTERM, evaluate._preempted)

    def stop():
        wait_for(file)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=stop)
    try:
        thread.start()
        # Long answers, so that the signal comes while there is something left to do.
        assert run(*flags(checkpoint, rows_file, tmp_path), "--max_tokens=400") == code
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    err = capsys.readouterr().err
    assert "The same command goes on from here: python -m launch.evaluate --benchmark=" in err
    assert 0 < file.read_bytes().count(b"\n") < 2 * ROWS


def test_it_goes_on_from_wherever_the_file_ends(whole, checkpoint, rows_file, tmp_path):
    content = (whole / "rows" / "samples.jsonl").read_bytes()
    for i, end in enumerate(np.random.default_rng(0).integers(0, len(content), 12)):
        out = tmp_path / str(i)
        shutil.copytree(whole, out)
        os.truncate(out / "rows" / "samples.jsonl", end)
        assert run(*flags(checkpoint, rows_file, out)) == 0
        assert (out / "rows" / "samples.jsonl").read_bytes() == content


def test_what_is_done_is_not_done_again(whole, checkpoint, rows_file, capsys):
    before = (whole / "rows" / "samples.jsonl").stat().st_mtime_ns
    assert run(*flags(checkpoint, rows_file, whole)) == 0
    assert (whole / "rows" / "samples.jsonl").stat().st_mtime_ns == before


def test_a_sample_depends_on_its_row_and_seed_alone(whole, checkpoint, rows_file, tmp_path):
    """Neither on its place, nor on the samples that are drawn with it."""
    turned = tmp_path / "rows.jsonl"
    turned.write_text("".join(reversed(rows_file.read_text().splitlines(keepends=True))))
    assert run(*flags(checkpoint, turned, tmp_path / "out", "--rows=5", "--batch=8")) == 0
    before = {(r["row"], r["sample"]): r for r in records(whole)}
    found = records(tmp_path / "out")
    assert [r["row"] for r in found[::2]] == [f"row-{ROWS - 1 - i}" for i in range(5)]
    for record in found:
        same = before[record["row"], record["sample"]]
        assert (record["seed"], record["ids"]) == (same["seed"], same["ids"])


def test_judging_again_needs_no_model_and_no_device(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    file = copy / "rows" / "samples.jsonl"
    spoilt = [{**r, "verdict": {**r["verdict"], "reward": 1 - r["verdict"]["reward"]}} for r in records(copy)]
    spoilt[0]["settings"]["checkpoint"] = "nowhere"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in spoilt))
    process = command(f"--regrade={copy}", JAX_PLATFORMS="no_such_device", CUDA_VISIBLE_DEVICES="")
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    fresh = file.read_text().replace("nowhere", records(whole)[0]["settings"]["checkpoint"])
    assert fresh == (whole / "rows" / "samples.jsonl").read_text()
    assert (copy / "scores.json").read_bytes() == (whole / "scores.json").read_bytes()


def test_two_checkpoints_are_compared_row_by_row(whole, checkpoint, rows_file, tmp_path, capsys):
    assert run(*flags(checkpoint, rows_file, tmp_path, "--seed=1", "--rows=6")) == 0
    capsys.readouterr()
    assert run(f"--compare={whole},{tmp_path}") == 0
    line = capsys.readouterr().out.splitlines()[2]
    ours, theirs = (
        np.array([r["verdict"]["reward"] for r in records(out)][:12]).reshape(6, 2) for out in (whole, tmp_path)
    )
    gain = theirs.mean(1) - ours.mean(1)
    assert f"{100 * gain.mean():+.1f} [" in line
    assert f"{(gain > 0).sum()}, {(gain < 0).sum()}, {(gain == 0).sum()}" in line
    assert run(f"--compare={whole},{whole}") == 0 and "+0.0 [" in capsys.readouterr().out


def test_prompts_that_are_too_long_are_counted_and_in_no_mean(checkpoint, rows_file, tmp_path, capsys):
    assert run(*flags(checkpoint, rows_file, tmp_path / "all", "--rows=4")) == 0
    lengths = [r["prompt_tokens"] for r in records(tmp_path / "all")]
    longest = sorted(lengths)[3]
    assert run(*flags(checkpoint, rows_file, tmp_path / "cut", "--rows=4", f"--longest_prompt={longest}")) == 1
    [scores] = json.loads((tmp_path / "cut" / "scores.json").read_text())
    too_long = sum(length > longest for length in lengths)
    assert 0 < too_long == scores["no_verdict"] and scores["alarm"] and scores["avg@k"]["rows"] == 4 - too_long // 2
    assert scores["no_verdict_reasons"] == {"prompt too long": too_long}
    assert "Too many to trust the score" in capsys.readouterr().out
    assert run(f"--regrade={tmp_path / 'cut'}") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark=ifbench"], "--checkpoint is missing"),
        (
            ["--benchmark=nothing", "--checkpoint=x", "--out=y"],
            "--benchmark=nothing is not known; give a file of rows, or",
        ),
        (["--benchmark=tau2", "--checkpoint=x", "--out=y"], "is not run here; it needs a simulated user"),
        (
            ["--benchmark=gpqa_diamond", "--checkpoint=x", "--out=y", "--data=z"],
            "needs its data as z/gpqa_diamond.jsonl",
        ),
        (["--benchmark=imo_answerbench", "--checkpoint=x", "--out=y"], "judged by another model; give --judge="),
        (["--benchmark=ifbench", "--checkpoint=x", "--out=y", "--samples=0"], "--samples=0 must be at least 1"),
        (["--benchmark=ifbench", "--checkpoint=x", "--out=y", "--top_p=0"], "x"),
        (["--compare=only"], "must be two folders"),
        (["--regrade=nowhere"], "nowhere holds no evaluation"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, capsys):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


def test_a_folder_keeps_to_its_settings(whole, checkpoint, rows_file, capsys):
    assert run(*flags(checkpoint, rows_file, whole, "--seed=5")) == 2
    assert "holds samples of other settings (seed 0, now 5)" in capsys.readouterr().err


def test_what_does_not_fit_is_refused_before_it_begins(checkpoint, rows_file, tmp_path, capsys):
    assert run(*flags(checkpoint, rows_file, tmp_path), "--max_tokens=2000000000") == 2
    err = capsys.readouterr().err
    assert "GiB are free; lower --batch or --max_tokens" in err and not list(tmp_path.iterdir())


def test_the_list_has_the_settings_of_the_paper(capsys):
    assert run("--list") == 0
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if line.startswith("|")}
    assert all(f" {k} " in lines["aime25"] for k in ("64", "1", "131,072", "yes"))
    assert all(f" {k} " in lines["ifbench"] for k in ("8", "0.6", "0.95", "32,768"))
