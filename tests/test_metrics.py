import json

import pytest

from cascade_jax.metrics import MetricsLog, append_lines, read, step_seconds, truncate_lines, write_tensorboard


def _write(folder, steps):
    for step in steps:
        MetricsLog(folder / "metrics.jsonl").append(
            step, {"reward": step / 4, "ratio_max": 1.5}, time={"rollout": 0.25, "update": 0.5}
        )
        append_lines(folder / "samples.jsonl", [{"step": step, "reply": f"answer {i}"} for i in range(2)])


def test_a_line_keeps_timings_apart_from_what_two_runs_share(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(7, {"b": 0.1, "a": 0, "c": float("nan"), "d": float("inf")}, time={"update": 0.5})
    assert (
        log.path.read_text()
        == '{"step": 7, "metrics": {"a": 0.0, "b": 0.1, "c": null, "d": null}, "time": {"update": 0.5}}\n'
    )
    assert read(log.path)[0]["metrics"]["b"] == 0.1  # every bit of it


def test_truncate_then_go_on_equals_an_uninterrupted_log(tmp_path):
    _write(tmp_path / "whole", range(1, 7))
    _write(tmp_path / "killed", range(1, 6))
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (tmp_path / "killed" / name).open("ab") as file:
            file.write(b'{"step": 6, "metr')  # a kill in the middle of a write
    MetricsLog(tmp_path / "killed" / "metrics.jsonl").truncate(3)
    truncate_lines(tmp_path / "killed" / "samples.jsonl", 3)
    assert [line["step"] for line in read(tmp_path / "killed" / "metrics.jsonl")] == [1, 2, 3]
    _write(tmp_path / "killed", range(4, 7))
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_truncate_before_anything_was_written(tmp_path):
    MetricsLog(tmp_path / "new" / "metrics.jsonl").truncate(0)
    assert not (tmp_path / "new").exists()
    _write(tmp_path, [1, 2])
    truncate_lines(tmp_path / "metrics.jsonl", 0)
    assert read(tmp_path / "metrics.jsonl") == []


def test_read_drops_a_torn_line_and_names_a_broken_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2')
    assert read(path) == [{"step": 1}]
    path.write_text('{"step": 1}\n{"step" 2}\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2 is not JSON"):
        read(path)


def test_text_survives(tmp_path):
    reply = 'line\nbreak \u2028 "quoted" ümlaut 日本語 \x85'
    append_lines(tmp_path / "samples.jsonl", [{"step": 1, "reply": reply}])
    truncate_lines(tmp_path / "samples.jsonl", 1)
    assert read(tmp_path / "samples.jsonl") == [{"step": 1, "reply": reply}]


def test_step_seconds():
    assert step_seconds({"time": {"rollout": 1.0, "update": 2.0}}) == 3.0
    assert step_seconds({"time": {"rollout": 1.0, "update": 2.0, "step": 3.5}}) == 3.5


def test_tensorboard_holds_what_the_logs_hold(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard: pip install -e .[report]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _write(tmp_path / "stages" / "sft", range(1, 5))
    _write(tmp_path / "stages" / "if_rl", range(1, 3))
    for _ in range(2):  # made anew each time, not added to
        assert write_tensorboard(tmp_path) == tmp_path / "tensorboard"
    for stage, steps in (("sft", 4), ("if_rl", 2)):
        events = EventAccumulator(str(tmp_path / "tensorboard" / stage))
        events.Reload()
        assert events.Tags()["scalars"] == ["ratio_max", "reward", "time/rollout", "time/update"]
        assert [(e.step, e.value) for e in events.Scalars("reward")] == [(s, s / 4) for s in range(1, steps + 1)]
    lines = read(tmp_path / "stages" / "sft" / "metrics.jsonl")
    assert json.dumps(lines[0]["metrics"]) == '{"ratio_max": 1.5, "reward": 0.25}'
