"""Multiple choice: MMLU-Pro, MMLU-Redux, MMLU-ProX, GPQA-Diamond, LongBench v2."""

import hashlib
import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade_jax.types import Row
from evals.benchmarks.benchmark import UNSAID, Benchmark, file_rows, of_kind, user_row
from evals.benchmarks.data import Data

PROMPT = "{question}\n\n{options}\n\nThink it through, then put the letter of the right option into \\boxed{{}}."
READ = "Read this text, then answer the question about it.\n\n{context}\n\n{question}"
LANGUAGES = ("en", "de", "es", "fr", "it", "ja")  # the six of 29 that the paper averages over

Question = tuple[str, list[str], int]  # text, options, index of the right one


def _rows(
    data: Data, name: str, source: str, question: Callable[[Mapping[str, Any]], Question | None], *, by: str
) -> Sequence[Row]:
    """The records that `question` reads, None where it leaves one out."""

    def make(record: Mapping[str, Any], number: int) -> Row | None:
        found = question(record)
        return found and _row(f"{name}-{number}", *found, {by: record.get(by)} if by else {})

    return file_rows(data, name, source, make)


def _row(name: str, text: str, options: Sequence[str], right: int, extra: Mapping[str, Any]) -> Row:
    lettered = dict(zip(string.ascii_uppercase, options, strict=False))
    shown = "\n".join(f"{letter}. {option}" for letter, option in lettered.items())
    fields = {
        "options": [{letter: option} for letter, option in lettered.items()],
        "expected_answer": string.ascii_uppercase[right],
        "grading_mode": "lenient_boxed",
        **extra,
    }
    return user_row(name, "mcqa", PROMPT.format(question=text.strip(), options=shown), fields)


def _mmlu_pro(record: Mapping[str, Any]) -> Question:
    return record["question"], list(record["options"]), string.ascii_uppercase.index(record["answer"])


def _mmlu_prox(record: Mapping[str, Any]) -> Question | None:
    if record["language"] not in LANGUAGES:
        return None
    options = [record[f"option_{i}"] for i in range(10)]
    options = [str(option) for option in options if option not in (None, "", "N/A")]
    return record["question"], options, string.ascii_uppercase.index(record["answer"])


def _mmlu_redux(record: Mapping[str, Any]) -> Question | None:
    """Questions that the re-annotation found sound, and those with a wrong key, which it corrected."""
    options = [str(choice) for choice in record["choices"]]
    if record["error_type"] == "ok":
        return record["question"], options, int(record["answer"])
    corrected = str(record.get("correct_answer") or "").strip().upper()
    if record["error_type"] == "wrong_groundtruth" and corrected in set("ABCD"):
        return record["question"], options, "ABCD".index(corrected)
    if record["error_type"] == "wrong_groundtruth" and corrected in set("0123"):
        return record["question"], options, int(corrected)
    return None


def _gpqa(record: Mapping[str, Any]) -> Question:
    """The right answer comes first in the file, so options are shuffled, the same way each time."""
    options = [record["Correct Answer"], *(record[f"Incorrect Answer {i}"] for i in (1, 2, 3))]
    options = [option.strip() for option in options]
    order = list(range(4))
    random.Random(hashlib.sha256(record["Question"].encode()).hexdigest()).shuffle(order)
    return record["Question"], [options[i] for i in order], order.index(0)


def _longbench(record: Mapping[str, Any]) -> Question:
    text = READ.format(context=record["context"], question=record["question"])
    return text, [record[f"choice_{letter}"] for letter in "ABCD"], "ABCD".index(record["answer"])


def _benchmark(
    name: str, title: str, source: str, question: Callable, *, samples: int = 1, by: str = "", note: str = ""
) -> Benchmark:
    return Benchmark(
        title,
        source,
        lambda data: _rows(data, name, source, question, by=by),
        of_kind("mcqa"),
        samples=samples,
        sampling=UNSAID,
        votes="text",
        by=by,
        note=note,
    )


FILES = {
    "mmlu_pro": (
        "MMLU-Pro, about 12,000 questions",
        "the test split of TIGER-Lab/MMLU-Pro on Hugging Face (question, options, answer, category)",
        _mmlu_pro,
        {"by": "category"},
    ),
    "mmlu_redux": (
        "MMLU-Redux, 3,000 questions without the faulty ones",
        "all subjects of edinburgh-dawg/mmlu-redux-2.0 on Hugging Face (question, choices, answer, error_type, "
        "correct_answer)",
        _mmlu_redux,
        {},
    ),
    "mmlu_prox": (
        "MMLU-ProX in English, German, Spanish, French, Italian and Japanese",
        "the test splits of li-lab/MMLU-ProX on Hugging Face for en de es fr it ja, one file, with a column language "
        "(question, option_0 to option_9, answer)",
        _mmlu_prox,
        {"by": "language", "note": "sampling: not in the paper"},
    ),
    "gpqa_diamond": (
        "GPQA-Diamond, 198 questions",
        "gpqa_diamond of Idavidrein/gpqa on Hugging Face, which asks for consent (Question, Correct Answer, Incorrect "
        "Answer 1 to 3)",
        _gpqa,
        {"samples": 8},
    ),
    "longbench_v2": (
        "LongBench v2, 503 questions on long texts",
        "the train split of THUDM/LongBench-v2 on Hugging Face (context, question, choice_A to choice_D, answer)",
        _longbench,
        {"samples": 4, "by": "length", "note": "sampling: not in the paper"},
    ),
}
BENCHMARKS = {
    name: _benchmark(name, title, source, question, **settings)
    for name, (title, source, question, settings) in FILES.items()
}
