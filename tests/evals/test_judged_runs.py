"""Benchmarks that another model judges, over loopback: a judge that is down is no verdict, and can be asked later."""

import json
import socket

import pytest

from cascade_jax.reward import judge_server
from launch import evaluate

ARENA = [
    {"uid": f"u{i}", "category": category, "prompt": "Describe the sea.", "baseline": "The sea " * (1 + 20 * (i % 2))}
    for i, category in enumerate(["hard_prompt", "creative_writing"] * 2)
]


def run(*arguments):
    return evaluate.main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def judged(checkpoint, tmp_path_factory):
    """An evaluation by a judge that answers, and its address."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "arenahard_v2.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in ARENA))
    with judge_server.running() as judge:
        given = ["--benchmark=arenahard_v2", f"--checkpoint={checkpoint}", f"--data={folder}", f"--judge={judge.url}"]
        code = run(*given, f"--out={folder}/out", "--max_tokens=4", "--thinking=no", "--batch=4")
        yield folder / "out", judge.url, code


def test_a_judge_scores_each_category(judged):
    out, _, code = judged
    [scores] = json.loads((out / "scores.json").read_text())
    assert code == 0 and scores["no_verdict"] == 0 and set(scores["by"]["parts"]) == {"hard_prompt", "creative_writing"}
    parts = [part["value"] for part in scores["by"]["parts"].values()]
    assert scores["by"]["mean_of_parts"] == pytest.approx(sum(parts) / 2)
    lines = [json.loads(line) for line in (out / "arenahard_v2" / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and all(len(line["verdict"]["info"]["labels"]) == 2 for line in lines)


def test_a_judge_that_is_down_is_no_verdict_until_it_is_back(judged, capsys):
    out, url, _ = judged
    file = out / "arenahard_v2" / "samples.jsonl"
    before = file.read_bytes()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        assert run(f"--regrade={out}", f"--judge={dead}") == 1
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(
        "cannot be reached" in line["verdict"]["no_verdict"] and line["verdict"]["reward"] is None for line in lines
    )
    [scores] = json.loads((out / "scores.json").read_text())
    assert scores["avg@k"]["value"] is None and scores["no_verdict"] == 4 and scores["alarm"]
    assert "4 of 4 samples have no verdict" in capsys.readouterr().out
    assert run(f"--regrade={out}", f"--judge={url}") == 0
    assert file.read_bytes() == before


def test_without_a_judge_it_does_not_begin(judged, capsys):
    assert run(f"--regrade={judged[0]}") == 2
    assert "give --judge=" in capsys.readouterr().err
