"""Episodes of several turns in an evaluation: kept in full, gone on with, and played again for another verdict."""

import json
import os

import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.rollout.environment import Observation, Opening
from cascade_jax.types import Row, Verdict
from evals import policy, runner
from evals.folder import Settings
from evals.grading import regrade


class Longer:
    """Asks for another word until three came; the words must differ in length. Breaks on a row that says so."""

    turns, resources = 4, ()

    def episode(self, row, *, seed):
        return _Words(row)


class _Words:
    def __init__(self, row):
        self.row, self.heard = row, []

    async def start(self):
        if self.row.fields.get("breaks"):
            raise OSError("the table is gone")
        return Opening(self.row.messages)

    async def step(self, reply):
        self.heard.append(len(reply.content))
        return Observation(({"role": "user", "content": "red"},), done=len(self.heard) == 3)

    async def verdict(self, trajectory):
        said = [len(reply.content) for reply in trajectory.replies]
        assert said[: len(self.heard)] == self.heard
        return Verdict(float(sum(said) % 2), {"turns": len(said)}, {"heard": self.heard, "stop": trajectory.stop})

    async def close(self):
        pass


ROWS = [
    Row(f"r{i}", "words", ({"role": "user", "content": "blue " * i},), fields={"breaks": i == 3}) for i in range(1, 6)
]


@pytest.fixture(scope="module")
def evaluated(checkpoint, tmp_path_factory):
    loaded = policy.load(checkpoint)
    # A net with random weights hardly ever stops; here every fifth token ends a turn, and some reach the limit.
    stops = range(0, loaded.config.vocab_size, 5)
    engine = LocalEngine(loaded.config, loaded.params, stop_ids=stops, buckets=(256,), batch=4)
    settings = Settings("words", "tiny", "", 2, SamplingConfig(max_tokens=12), False, 0, 0, 4, 200)

    def evaluate(folder, rows=ROWS):
        return runner.run(engine, loaded.chat, Longer(), rows, settings, folder)

    folder = tmp_path_factory.mktemp("words")
    return evaluate, folder, evaluate(folder)


def test_all_turns_are_kept(evaluated):
    _, _, records = evaluated
    assert [(r["row"], r["sample"]) for r in records] == [(row.id, i) for row in ROWS for i in range(2)]
    for record in records:
        if record["row"] == "r3":
            assert "the table is gone" in record["verdict"]["no_verdict"] and record["verdict"]["reward"] is None
            continue
        assert record["turns"] == len(record["episode"]["replies"]) == record["verdict"]["components"]["turns"]
        assert record["reply"] == record["episode"]["replies"][-1]
        later = sum(sum(segment["mask"]) for segment in record.get("later", []))
        assert record["tokens"] == sum(record.get("mask", [1] * len(record["ids"]))) + later
    assert {r["stop_reason"] for r in records} == {"stop", "length", "broken"}


def test_played_again_they_get_the_same_verdict(evaluated, tmp_path):
    evaluate, _, records = evaluated
    folder = tmp_path / "copy"
    evaluate(folder)
    file = folder / "samples.jsonl"
    before = file.read_text()
    assert [json.loads(line) for line in before.splitlines()] == records
    spoilt = [{**r, "verdict": {**r["verdict"], "reward": 7}} if r["row"] != "r3" else r for r in records]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in spoilt))
    regrade(folder, Longer())
    assert file.read_text() == before


def test_a_row_s_episodes_do_not_depend_on_the_others(evaluated, tmp_path):
    evaluate, _, records = evaluated
    turned = {(r["row"], r["sample"]): r for r in evaluate(tmp_path / "turned", ROWS[::-1])}
    assert all(turned[r["row"], r["sample"]]["ids"] == r["ids"] for r in records)


def test_they_go_on_where_they_were_cut(evaluated, tmp_path):
    evaluate, folder, _ = evaluated
    evaluate(tmp_path / "cut")
    os.truncate(tmp_path / "cut" / "samples.jsonl", (folder / "samples.jsonl").stat().st_size * 2 // 3)
    evaluate(tmp_path / "cut")
    assert (tmp_path / "cut" / "samples.jsonl").read_bytes() == (folder / "samples.jsonl").read_bytes()
