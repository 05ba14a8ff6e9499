"""Tasks of many turns in a shell: SWE-bench Verified and Terminal-Bench 2.0."""

from collections.abc import Mapping, Sequence
from typing import Any

from cascade_jax.data.rows import parse_row
from cascade_jax.types import Row
from evals.benchmarks.benchmark import UNSAID, Benchmark, K, SamplingConfig, file_rows, of_kind
from evals.benchmarks.data import Data

SWE = (
    "the test split of princeton-nlp/SWE-bench_Verified on Hugging Face (instance_id, repo, base_commit, "
    "problem_statement, patch, test_patch, FAIL_TO_PASS, PASS_TO_PASS); beside it, in the folder repositories, a clone "
    "or a bundle of each repo as OWNER__NAME"
)
TERMINAL = "the 89 task folders of Terminal-Bench 2.0, each with instruction.md, task.toml, environment and tests"


def _repairs(data: Data) -> Sequence[Row]:
    def make(record: Mapping[str, Any], number: int) -> Row:
        name = record["repo"].replace("/", "__")
        places = [data.folder / "repositories" / f"{name}{ending}" for ending in ("", ".git", ".bundle")]
        found = next((str(place.resolve()) for place in places if place.exists()), None)
        known = {"repository": found} if found else {}  # without one, its samples will have no verdict
        return parse_row({**record, "kind": "swe", "id": record["instance_id"], **known}, where=record["instance_id"])

    return file_rows(data, "swe_bench_verified", SWE, make)


def _terminal(data: Data) -> Sequence[Row]:
    folder = data.folder / "terminal_bench_2"
    tasks = sorted(path.parent.resolve() for path in folder.glob("*/task.toml"))
    if not tasks:
        raise FileNotFoundError(
            f"terminal_bench_2 needs {folder}: {TERMINAL}. Put it there, or give its parent as --data."
        )
    return [parse_row({"id": task.name, "kind": "terminal", "task_path": str(task)}, where=str(task)) for task in tasks]


BENCHMARKS = {
    "swe_bench_verified": Benchmark(
        "SWE-bench Verified, 500 tasks, at most 200 turns",
        SWE,
        _repairs,
        of_kind("swe", turns=200, instructions=True),
        samples=4,
        sampling=SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=256 * K),
        thinking=False,
        by="repo",
        note="a shell in place of the paper's OpenHands; tests by pytest; temperature and top-p: not in the paper",
    ),
    "terminal_bench_2": Benchmark(
        "Terminal-Bench 2.0, 89 tasks",
        TERMINAL,
        _terminal,
        of_kind("terminal", instructions=True),
        samples=5,
        sampling=UNSAID,
        note="a shell, not Terminus 2; tasks with an image of their own get no verdict; sampling: not in the paper",
    ),
}
