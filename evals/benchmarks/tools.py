"""Calls of tools: the single turns of the Berkeley Function Calling Leaderboard v4."""

from evals.benchmarks.benchmark import UNSAID, Benchmark
from evals.bfcl import Bfcl, rows

BENCHMARKS = {
    "bfcl_v4": Benchmark(
        "BFCL v4, its single-turn categories",
        "the package bfcl-eval",
        lambda data: rows(),
        lambda judge: Bfcl(),
        sampling=UNSAID,
        by="category",
        note="without web search and memory; sampling: not in the paper",
    ),
}
