"""Choose among three words or numbers; the answer is a boxed letter, or `Answer: X` where a row has a pattern."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import COLORS, LETTERS, WORDS, assistant, pick

QUESTIONS = ("Color", "Largest", "Smallest", "First by alphabet")  # by difficulty
_PATTERN = r"Answer: ([A-Z])\s*$"


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: which is a color; 1, 2: three digits or two-digit numbers; 3: three words. At least 720 contents each."""
    if difficulty == 0:
        values = [*pick(rng, COLORS, 1), *pick(rng, WORDS, 2)]
        values = [values[i] for i in rng.permutation(3)]
    elif difficulty == 3:
        values = pick(rng, WORDS, 3)
    else:
        low, high = ((0, 10), (10, 100))[difficulty - 1]
        values = [str(i + low) for i in rng.permutation(high - low)[:3]]
    return {"question": QUESTIONS[difficulty], "values": values}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    options = list(zip(LETTERS, content["values"], strict=False))
    listed = ", ".join(f"{letter} {value}" for letter, value in options)
    columns = {"options": [{letter: value} for letter, value in options], "expected_answer": _right(content)}
    if _by_alphabet(content):
        form = {"grading_mode": "lenient_answer_colon", "template_metadata": {"output_regex": _PATTERN}}
    else:
        form = {"grading_mode": "strict_single_letter_boxed"}
    return {"user": f"{content['question']}: {listed}", **columns, **form}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The right letter in the right form."""
    return assistant(_write(content, _right(content)))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the right letter without its form, or another letter."""
    if rng.random() < 0.6:
        return assistant(_right(content))
    return assistant(_write(content, pick(rng, _others(content), 1)[0]))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Other letters, the right one without its form, the value in place of the letter, and a hedge."""
    right, others = _right(content), _others(content)
    texts = ["", right, _write(content, f"{right} or {others[0]}"), _write(content, "Z")]
    if not _by_alphabet(content):  # the lenient mode reads the text of an option as its letter
        texts.append(_write(content, content["values"][LETTERS.index(right)]))
    return [assistant(text) for text in texts + [_write(content, letter) for letter in others]]


def _by_alphabet(content: dict[str, Any]) -> bool:
    return content["question"] == QUESTIONS[3]


def _right(content: dict[str, Any]) -> str:
    values = content["values"]
    chosen = {
        "Color": lambda: next(value for value in values if value in COLORS),
        "Largest": lambda: max(values, key=int),
        "Smallest": lambda: min(values, key=int),
        "First by alphabet": lambda: min(values),
    }[content["question"]]()
    return LETTERS[values.index(chosen)]


def _others(content: dict[str, Any]) -> tuple[str, ...]:
    return tuple(letter for letter in LETTERS[: len(content["values"])] if letter != _right(content))


def _write(content: dict[str, Any], answer: str) -> str:
    return f"Answer: {answer}" if _by_alphabet(content) else f"\\boxed{{{answer}}}"
