"""Sums and differences of small numbers, with a boxed answer."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import assistant


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """Three digits and 1 to 3 more (0) or less (1), within the ten; 2: two digits and one; 3: two and two."""
    if difficulty >= 2:
        a, b = (int(i) for i in rng.integers((10, 0), ((100, 10), (60, 40))[difficulty - 2]))
        return {"a": a, "b": b + 10 * (difficulty == 3), "sign": "+"}
    tens, b = int(rng.integers(10, 100)), int(rng.integers(1, 4))
    ones = int(rng.integers(b, 10)) if difficulty else int(rng.integers(10 - b))
    return {"a": 10 * tens + ones, "b": b, "sign": "-" if difficulty else "+"}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    user = f"{content['a']} {content['sign']} {content['b']} ="
    return {"user": user, "question": user, "expected_answer": str(_right(content))}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The right number, boxed."""
    return assistant(f"\\boxed{{{_right(content)}}}")


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: right but not boxed, or one off."""
    right = _right(content)
    if rng.random() < 0.7:
        return assistant(str(right))
    return assistant(f"\\boxed{{{right + 1 if right == 0 or rng.random() < 0.5 else right - 1}}}")


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Near numbers, the negative, two answers, and the right one without its box."""
    right = _right(content)
    texts = ["", str(right), f"\\boxed{{{right + 1}}}", f"\\boxed{{{right + 10}}}", f"\\boxed{{-{right + 1}}}"]
    texts += ["\\boxed{}", f"\\boxed{{{right}", f"\\boxed{{{right}}} \\boxed{{{right + 1}}}"]
    return [assistant(text) for text in texts]


def _right(content: dict[str, Any]) -> int:
    return content["a"] + content["b"] if content["sign"] == "+" else content["a"] - content["b"]
