"""A run directory, read back. All but manifest.json may be missing: a run can be stopped at any moment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cascade_jax.metrics import read


@dataclass(frozen=True)
class Score:
    """One domain of one evaluation: the share of rows that passed, with its 95 % Wilson interval."""

    score: float
    count: int = 0
    low: float | None = None
    high: float | None = None
    no_verdict: int = 0
    truncated: float | None = None  # share of samples
    length: float | None = None  # tokens, mean


@dataclass(frozen=True)
class Teacher:
    stage: str
    reason: str = ""
    scores: Mapping[str, float | None] = field(default_factory=dict)  # stage -> validation score


@dataclass(frozen=True)
class Stage:
    """One stage as the manifest and its logs tell it. `init` is the row of the weights that the run started from."""

    name: str
    kind: str
    parent: str = ""
    status: str = "finished"  # pending, running, finished
    steps: int = 0
    domains: Mapping[str, float] = field(default_factory=dict)
    side_branch: bool = False
    seconds: float = 0.0
    teachers: Mapping[str, Teacher] = field(default_factory=dict)
    evaluation: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)  # split -> domain -> score
    metrics: tuple[Mapping[str, Any], ...] = ()
    samples: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Run:
    name: str
    status: str  # running, finished, stopped
    stages: tuple[Stage, ...]  # in order, `init` first where it was evaluated
    config: Mapping[str, Any]
    versions: Mapping[str, Any]

    def split(self) -> str:
        """The headline: test, where every evaluated stage has test scores, else validation."""
        evaluated = [stage for stage in self.stages if stage.evaluation]
        return "test" if evaluated and all(stage.evaluation.get("test") for stage in evaluated) else "validation"


def load(run_dir: Path) -> Run:
    """FileNotFoundError where run_dir holds no manifest."""
    path = run_dir / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} is not the directory of a run: it has no manifest.json; give the --workdir of launch.run."
        )
    manifest = json.loads(path.read_text(encoding="utf-8"))
    config = _json(run_dir / "config.json")
    order = [name for name in config.get("order", []) if name in manifest["stages"]]
    order += [name for name in manifest["stages"] if name not in order]
    stages = [_stage(name, manifest["stages"][name], run_dir / "stages" / name) for name in order]
    if manifest.get("initial"):
        stages.insert(0, Stage("init", "init", evaluation=_evaluation(manifest["initial"])))
    return Run(manifest["name"], manifest["status"], tuple(stages), config, _json(run_dir / "versions.json"))


def _stage(name: str, entry: Mapping[str, Any], folder: Path) -> Stage:
    plain = {key: entry[key] for key in ("kind", "parent", "status", "steps", "domains", "side_branch") if key in entry}
    return Stage(
        name=name,
        **plain,
        seconds=entry.get("seconds") or 0.0,
        teachers={domain: _of(Teacher, teacher) for domain, teacher in (entry.get("teachers") or {}).items()},
        evaluation=_evaluation(entry.get("evaluation") or {}),
        metrics=_lines(folder / "metrics.jsonl"),
        samples=_lines(folder / "samples.jsonl"),
        notes=_lines(folder / "notes.jsonl"),
    )


def _evaluation(entry: Mapping[str, Any]) -> dict[str, dict[str, Score]]:
    return {
        split: {domain: _of(Score, score) for domain, score in domains.items() if score.get("score") is not None}
        for split, domains in entry.items()
        if domains
    }


def _of(cls: type, entry: Mapping[str, Any]) -> Any:
    names = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in entry.items() if key in names})


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(read(path)) if path.is_file() else ()
