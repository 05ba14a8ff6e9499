"""manifest.json: what a run has done so far. Written whole beside its place and renamed, so it is never half there."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_jax import graph
from cascade_jax.config import CascadeConfig


@dataclass(frozen=True)
class StageRecord:
    """One stage. `teachers`: domain -> {stage, reason, scores}; `evaluation`: split -> domain -> result."""

    kind: str
    parent: str
    steps: int
    domains: dict[str, float]
    side_branch: bool = False
    status: str = "pending"  # pending, running, finished
    teachers: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Manifest:
    """The whole run. `initial`: the evaluation of the weights that it started from, where those were trained ones."""

    name: str
    status: str = "running"  # running, stopped, finished
    stages: dict[str, StageRecord] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)

    def with_stage(self, name: str, **changes: Any) -> "Manifest":
        """The manifest with some fields of one stage replaced."""
        record = dataclasses.replace(self.stages[name], **changes)
        return dataclasses.replace(self, stages={**self.stages, name: record})


def write(path: Path, manifest: Manifest) -> None:
    write_json(path, dataclasses.asdict(manifest))


def read(path: Path) -> Manifest | None:
    """The manifest of an earlier start, or None."""
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    stages = {name: StageRecord(**record) for name, record in values.pop("stages").items()}
    return Manifest(stages=stages, **values)


def write_json(path: Path, values: Any) -> None:
    """Atomic: the file is either the old one or the new one, whatever kills the process."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        json.dump(values, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def fresh(config: CascadeConfig) -> Manifest:
    """Of a run that has not begun."""
    parent = graph.parents(config)
    return Manifest(
        config.name,
        stages={
            name: StageRecord(stage.kind, parent[name], stage.steps, dict(stage.domains), stage.side_branch)
            for name, stage in ((name, config.stages[name]) for name in config.order)
        },
    )


def choose_teachers(config: CascadeConfig, manifest: Manifest, name: str) -> dict[str, Any]:
    """domain -> {stage, reason, scores}; empty for a stage without teachers."""
    stage = config.stages[name]
    if stage.kind != "distill":
        return {}
    finished = [n for n in config.order if manifest.stages[n].status == "finished"]
    results = {n: manifest.stages[n].evaluation.get("validation", {}) for n in finished}
    scores = {n: {domain: result["score"] for domain, result in found.items()} for n, found in results.items()}
    teachers = {}
    for domain in stage.domains:
        teacher, reason = graph.choose_teacher(stage.distill.teachers[domain], domain, scores, finished)
        teachers[domain] = {"stage": teacher, "reason": reason, "scores": {n: scores[n].get(domain) for n in finished}}
    return teachers
