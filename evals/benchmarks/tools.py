"""Calls of tools: the Berkeley Function Calling Leaderboard v4, in one turn and in several."""

from evals import bfcl, bfcl_turns
from evals.benchmarks.benchmark import UNSAID, Benchmark

NOTE = "without web search and memory; sampling: not in the paper"

BENCHMARKS = {
    "bfcl_v4": Benchmark(
        "BFCL v4, its single-turn categories",
        "the package bfcl-eval",
        lambda data: bfcl.rows(),
        lambda judge: bfcl.Bfcl(),
        sampling=UNSAID,
        by="category",
        note=NOTE,
    ),
    "bfcl_v4_turns": Benchmark(
        "BFCL v4, its categories of several turns",
        "the package bfcl-eval",
        lambda data: bfcl_turns.rows(),
        lambda judge: bfcl_turns.BfclTurns(),
        sampling=UNSAID,
        by="category",
        note=NOTE,
    ),
}
