"""Tasks of many turns in a shell: SWE-bench Verified and Terminal-Bench 2.0."""

from collections.abc import Sequence

from cascade_jax.data.rows import parse_row
from cascade_jax.types import Row
from evals.benchmarks.benchmark import UNSAID, Benchmark, K, SamplingConfig, of_kind, own_rows
from evals.benchmarks.data import Data

SWE = (
    "the 500 tasks of princeton-nlp/SWE-bench_Verified on Hugging Face as rows of the kind swe, each with its "
    "repository (the columns files and history)"
)
TERMINAL = "the 89 task folders of Terminal-Bench 2.0, each with instruction.md, task.toml, environment and tests"


def _terminal(data: Data) -> Sequence[Row]:
    folder = data.folder / "terminal_bench_2"
    tasks = sorted(path.parent for path in folder.glob("*/task.toml"))
    if not tasks:
        raise FileNotFoundError(
            f"terminal_bench_2 needs {folder}: {TERMINAL}. Put it there, or give its parent as --data."
        )
    return [
        parse_row(
            {
                "id": task.name,
                "kind": "terminal",
                "task_path": str(task.resolve()),
                "responses_create_params": {"input": (task / "instruction.md").read_text(encoding="utf-8")},
            },
            where=str(task),
        )
        for task in tasks
    ]


BENCHMARKS = {
    "swe_bench_verified": Benchmark(
        "SWE-bench Verified, 500 tasks, at most 200 turns",
        SWE,
        lambda data: own_rows(data, "swe_bench_verified", SWE),
        of_kind("swe", turns=200),
        samples=4,
        sampling=SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=256 * K),
        thinking=False,
        note="the paper's scaffold is OpenHands; temperature and top-p are not in the paper",
    ),
    "terminal_bench_2": Benchmark(
        "Terminal-Bench 2.0, 89 tasks",
        TERMINAL,
        _terminal,
        of_kind("terminal"),
        samples=5,
        sampling=UNSAID,
        note="the paper's scaffold is Terminus 2; sampling: not in the paper",
    ),
}
