"""Competition mathematics with short answers, judged by rule: AIME and HMMT."""

from collections.abc import Sequence

from cascade_jax.types import Row
from evals.benchmarks.benchmark import Benchmark, K, SamplingConfig, file_rows, of_kind, user_row
from evals.benchmarks.data import Data, lines

PROMPT = "{question}\n\nReason step by step. Put the final answer, and nothing but it, into \\boxed{{}}."
SAMPLING = SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=128 * K)
SHIPPED = "resources_servers/ns_tools/data/compmath_test.jsonl"
GYM = "pip download --no-deps --python-version 3.12 --only-binary=:all: --dest {folder} nemo-gym==0.4.0"


def _row(name: str, question: str, answer: str) -> Row:
    fields = {"question": question, "expected_answer": answer}
    return user_row(name, "math", PROMPT.format(question=question), fields)


def _from_gym(data: Data, *prefixes: str) -> Sequence[Row]:
    """Rows of the mathematics test file of NeMo-Gym whose id begins with a prefix."""
    content = data.shipped("nemo-gym", SHIPPED, cure=GYM.format(folder=data.folder))
    return [
        _row(record["id"], record["question"], str(record["expected_answer"]))
        for record in lines(content)
        if record["id"].startswith(prefixes)
    ]


def _from_file(data: Data, name: str, source: str) -> Sequence[Row]:
    return file_rows(
        data, name, source, lambda record, i: _row(f"{name}-{i}", record["problem"], str(record["answer"]))
    )


AIME26 = "the 30 problems of AIME 2026 with the columns problem and answer, such as MathArena/aime_2026 on Hugging Face"
WHEEL = "the wheel nemo-gym 0.4.0 (needs Python 3.12 to be installed; its wheel in --data will do)"


def _contest(title: str, source: str, load, *, note: str = "") -> Benchmark:
    return Benchmark(title, source, load, of_kind("math"), samples=64, sampling=SAMPLING, votes="math", note=note)


BENCHMARKS = {
    "aime24": _contest("AIME 2024, 30 problems", WHEEL, lambda data: _from_gym(data, "aime24-")),
    "aime25": _contest("AIME 2025, 30 problems", WHEEL, lambda data: _from_gym(data, "aime25-")),
    "aime26": _contest("AIME 2026, 30 problems", AIME26, lambda data: _from_file(data, "aime26", AIME26)),
    "hmmt_feb25": _contest(
        "HMMT February 2025: algebra, combinatorics, geometry",
        WHEEL,
        lambda data: _from_gym(data, *(f"hmmt_F_2025_{part}_" for part in ("algebra", "combinatorics", "geometry"))),
        note="29 of the 30 problems: the wheel lacks geometry 4",
    ),
    "hmmt": _contest("HMMT 2024 and 2025, all 196 problems of the wheel", WHEEL, lambda data: _from_gym(data, "hmmt_")),
}
