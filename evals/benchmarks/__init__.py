"""Benchmarks by name, with the settings of the paper as defaults (Nemotron-Cascade 2, appendix A; recipe.md 15)."""

from cascade_jax.data import sources
from cascade_jax.reward import VERIFIERS, Verdict, Verifier
from cascade_jax.types import Row, Sample
from evals.benchmarks import agents, choices, instructions, judged, math, programs
from evals.benchmarks.benchmark import Benchmark
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

# Benchmarks of the paper that are not run here, and what runs them.
ELSEWHERE = {
    "tau2": "needs a simulated user; its own package, pointed at a served checkpoint",
    "scicode": "needs its own numerical references; inspect-evals, pointed at a served checkpoint",
    "multi_challenge": "its judge asks a question of its own per conversation; its own repository",
    "cl_bench": "31,607 rubrics with a judge; its own repository",
    "wmt24pp": "scored by the network XCOMET-XXL; its own repository",
}


def find(name: str) -> Benchmark:
    """A benchmark by name, or the rows of a .jsonl or .parquet file. ValueError where it is neither."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.endswith((".jsonl", ".parquet")):
        return Benchmark(
            f"the rows of {name}", name, lambda data: list(sources.open_rows(name)), lambda judge: ByKind(judge)
        )
    if name in ELSEWHERE:
        raise ValueError(f"--benchmark={name} is not run here: {ELSEWHERE[name]}.")
    raise ValueError(f"--benchmark={name} is not known; give a file of rows, or {', '.join(BENCHMARKS)}.")
