"""scores.json and scores.md of a folder of evaluations, and the comparison of two such folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.types import Row
from evals import benchmarks, folder, scores, tables
from evals.benchmarks import Benchmark
from evals.folder import Record, Settings


def evaluated(out: Path) -> list[Path]:
    """The folders of benchmarks in it, in the order of their names. FileNotFoundError where there are none."""
    found = sorted(file.parent for file in out.glob("*/settings.json"))
    if not found:
        raise FileNotFoundError(f"{out} holds no evaluation; give what launch.evaluate had as --out.")
    return found


def benchmark_of(path: Path) -> Benchmark:
    """What an evaluation's folder is of, by its settings and rows alone."""
    name = folder.read_settings(path).benchmark
    if name in benchmarks.BENCHMARKS:
        return benchmarks.BENCHMARKS[name]
    return benchmarks.of_rows(folder.read_rows(path), source=name)


def write(out: Path) -> tuple[list[dict[str, Any]], str]:
    """Write scores.json and scores.md from all that lies in `out`; the summaries, and the table."""
    found = [scores.summary(benchmark_of(path), *read(path)) for path in evaluated(out)]
    text = tables.scores(found)
    folder.written_whole(out / "scores.json", [json.dumps(found, indent=1)])
    folder.written_whole(out / "scores.md", [text])
    return found, text


def read(path: Path) -> tuple[Settings, list[Row], list[Record]]:
    return folder.read_settings(path), folder.read_rows(path), folder.read_records(path)


def compare(first: Path, second: Path) -> list[dict[str, Any]]:
    """The second folder's checkpoint against the first's on every benchmark that both hold, over the rows they share.

    ValueError where they share nothing.
    """
    found = []
    for path in evaluated(first):
        other = second / path.name
        if (other / "settings.json").exists():
            found += _compared(path, other)
    if not found:
        names = (", ".join(path.name for path in evaluated(out)) for out in (first, second))
        raise ValueError(f"{first} and {second} have no drawn rows in common ({' against '.join(names)}).")
    return found


def _compared(first: Path, second: Path) -> list[dict[str, Any]]:
    """One comparison, or none where no row is the same in both and drawn in both."""
    settings, rows, records = zip(read(first), read(second), strict=True)
    drawn = [{record["row"] for record in found} for found in records]
    others = {row.id: row for row in rows[1]}
    shared = [row for row in rows[0] if row == others.get(row.id) and all(row.id in ids for ids in drawn)]
    return [scores.comparison(settings, shared, records)] if shared else []


def without_verdict(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The benchmarks in which so many samples have no verdict that the score means little."""
    return [summary["benchmark"] for summary in summaries if summary["alarm"]]
