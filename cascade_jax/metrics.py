"""What a stage writes down at every step, and the TensorBoard files that are made from it.

A line of metrics.jsonl: {"step": 3, "metrics": {"reward": 0.5, ...}, "time": {"rollout": 1.2, ...}}. `metrics` is the
same in every run of the same seed, so that two runs can be compared with `==`; `time` (seconds) never is.
"""

import importlib.util
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class MetricsLog:
    """The metrics.jsonl of one stage. `step` counts the steps that are done, from 1."""

    path: Path

    def append(self, step: int, metrics: Mapping[str, float], *, time: Mapping[str, float]) -> None:
        """One line, on disk when this returns. A value that is not finite becomes null: JSON has no word for nan."""
        values = {name: float(value) if math.isfinite(value) else None for name, value in sorted(metrics.items())}
        append_lines(self.path, [{"step": step, "metrics": values, "time": dict(time)}])

    def truncate(self, step: int) -> None:
        """Forget the lines after `step`, the step of the checkpoint that a run goes on from."""
        truncate_lines(self.path, step)


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line per record; they are on disk when this returns, before a checkpoint can name their step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def truncate_lines(path: Path, step: int) -> None:
    """Drop the lines whose `step` is later, and a last line that a kill has torn. A log not yet begun is left alone."""
    if path.exists():
        kept = [line for line in read(path) if line["step"] <= step]
        fresh = path.with_suffix(".jsonl.new")
        fresh.unlink(missing_ok=True)
        append_lines(fresh, kept)
        os.replace(fresh, path)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. A last line that a kill has torn is left out; ValueError for any other that is broken."""
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}:{number} is not JSON ({error}); remove that line to read the rest.") from None
    return lines


def write_tensorboard(run_dir: Path) -> Path | None:
    """Make run_dir/tensorboard anew from the logs of all stages. None where the package tensorboard is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    target = run_dir / "tensorboard"
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(run_dir.glob("stages/*/metrics.jsonl")):
        _write_events(target / path.parent.name, read(path), ended=path.stat().st_mtime)
    return target


def step_seconds(line: Mapping[str, Any]) -> float:
    """How long the step of this line took: its own `step` timing, or the sum of the timings of its parts."""
    return line["time"]["step"] if "step" in line["time"] else sum(line["time"].values())


def _write_events(folder: Path, lines: list[dict[str, Any]], *, ended: float) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    wall_time = ended - sum(map(step_seconds, lines))
    for line in lines:
        wall_time += step_seconds(line)
        values = {**line["metrics"], **{f"time/{name}": seconds for name, seconds in line["time"].items()}}
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]
        writer.add_event(Event(wall_time=wall_time, step=line["step"], summary=Summary(value=scalars)))
    writer.close()
