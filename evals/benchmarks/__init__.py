"""Benchmarks by name, with the settings of the paper as defaults (Nemotron-Cascade 2, appendix A; recipe.md 15)."""

from cascade_jax.data import sources
from cascade_jax.types import Row
from evals.benchmarks import agents, choices, instructions, judged, math, programs
from evals.benchmarks.benchmark import Benchmark, of_kind
from evals.benchmarks.data import Data

__all__ = ["BENCHMARKS", "ELSEWHERE", "Benchmark", "Data", "find"]

BENCHMARKS: dict[str, Benchmark] = {
    **math.BENCHMARKS,
    **instructions.BENCHMARKS,
    **programs.BENCHMARKS,
    **choices.BENCHMARKS,
    **judged.BENCHMARKS,
    **agents.BENCHMARKS,
}

VOTES = {"math": "math", "mcqa": "text"}  # of the rows of a file, by kind

# Benchmarks of the paper that are not run here, and why.
ELSEWHERE = {
    "tau2": "needs a simulated user: run its own package on a served checkpoint",
    "scicode": "compares with numerical references of its own: run inspect-evals on a served checkpoint",
    "multi_challenge": "asks a judge a question of each conversation: run its own repository on a served checkpoint",
    "cl_bench": "has a judge tick 31,607 rubrics: run its own repository on a served checkpoint",
    "wmt24pp": "is scored by the network XCOMET-XXL: run its own repository on a served checkpoint",
}


def find(name: str, *, kind: str = "") -> Benchmark:
    """A benchmark by name, or one whose rows, of one kind, are a .jsonl or .parquet file of that name.

    `kind`: of those rows, where it is known. ValueError where it is neither, FileNotFoundError for a missing file.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith((".jsonl", ".parquet")):
        kind = kind or sources.open_rows(name)[0].kind
        return Benchmark(
            f"the rows of {name}", name, lambda data: _rows(name, kind), of_kind(kind), votes=VOTES.get(kind, "")
        )
    if name in ELSEWHERE:
        raise ValueError(f"--benchmark={name} is not run here; it {ELSEWHERE[name]}.")
    raise ValueError(f"--benchmark={name} is not known; give a file of rows, or {', '.join(BENCHMARKS)}.")


def _rows(name: str, kind: str) -> list[Row]:
    rows = list(sources.open_rows(name))
    others = {row.kind for row in rows} - {kind}
    if others:
        raise ValueError(
            f"{name} holds rows of the kinds {', '.join(sorted([kind, *others]))}; give one file for each."
        )
    return rows
