"""Benchmarks by name, with the settings of the paper as defaults (Nemotron-Cascade 2, appendix A; recipe.md 15)."""

from collections.abc import Sequence
from pathlib import Path

from cascade_jax.data import sources
from cascade_jax.types import Row
from evals.benchmarks import agents, choices, instructions, judged, long, math, programs, tools
from evals.benchmarks.benchmark import Benchmark, of_kind
from evals.benchmarks.data import Data

__all__ = ["BENCHMARKS", "ELSEWHERE", "Benchmark", "Data", "find", "of_rows"]

BENCHMARKS: dict[str, Benchmark] = {
    **math.BENCHMARKS,
    **instructions.BENCHMARKS,
    **programs.BENCHMARKS,
    **choices.BENCHMARKS,
    **judged.BENCHMARKS,
    **long.BENCHMARKS,
    **tools.BENCHMARKS,
    **agents.BENCHMARKS,
}

VOTES = {"math": "math", "mcqa": "text"}  # of the rows of a file, by kind

SETTINGS = {"swe_repair": {"unparsable": 0.0}}  # scores are from 0 to 1

# Benchmarks of the paper that are not run here, and why.
ELSEWHERE = {
    "tau2": "needs a simulated user: run its own package on a served checkpoint",
    "scicode": "compares with numerical references of its own: run inspect-evals on a served checkpoint",
    "multi_challenge": "asks a judge a question of each conversation: run its own repository on a served checkpoint",
    "cl_bench": "has a judge tick 31,607 rubrics: run its own repository on a served checkpoint",
    "wmt24pp": "is scored by the network XCOMET-XXL: run its own repository on a served checkpoint",
}


def find(name: str) -> tuple[str, Benchmark]:
    """The benchmark of this name, or the rows of a .jsonl or .parquet file under the file's name without its ending.

    ValueError where it is neither, FileNotFoundError for a missing file.
    """
    if name in BENCHMARKS:
        return name, BENCHMARKS[name]
    if name in ELSEWHERE:
        raise ValueError(f"--benchmark={name} is not run here; it {ELSEWHERE[name]}.")
    if not name.endswith((".jsonl", ".parquet")):
        raise ValueError(f"--benchmark={name} is not known; give a file of rows, or {', '.join(BENCHMARKS)}.")
    stem = Path(name).stem
    if stem in BENCHMARKS:
        raise ValueError(f"--benchmark={name} has the name of the benchmark {stem}; give the file another one.")
    return stem, of_rows(list(sources.open_rows(name)), source=name)


def of_rows(rows: Sequence[Row], *, source: str) -> Benchmark:
    """Any rows as a benchmark. ValueError where they are of several kinds."""
    kinds = sorted({row.kind for row in rows})
    if len(kinds) > 1:
        raise ValueError(f"{source} holds rows of the kinds {', '.join(kinds)}; give one file for each.")
    judge = of_kind(kinds[0], **SETTINGS.get(kinds[0], {}))
    return Benchmark(f"the rows of {source}", source, lambda data: rows, judge, votes=VOTES.get(kinds[0], ""))
