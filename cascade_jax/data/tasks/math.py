"""Sums and differences of small numbers, with a boxed answer."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import assistant


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: a + b with digits (100 contents); 1: a - b >= 0 with digits; 2: two digits and one; 3: two and two."""
    a, b = (int(i) for i in rng.integers((0, 0), ((10, 10), (10, 10), (90, 10), (50, 50))[difficulty]))
    if difficulty == 1:
        return {"a": max(a, b), "b": min(a, b), "sign": "-"}
    return {"a": a + 10 * (difficulty >= 2), "b": b + 10 * (difficulty == 3), "sign": "+"}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    user = f"{content['a']} {content['sign']} {content['b']} ="
    return {"user": user, "question": user, "expected_answer": str(_right(content))}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The right number, boxed."""
    return assistant(f"\\boxed{{{_right(content)}}}")


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: one off, or right but not boxed."""
    right = _right(content)
    if rng.random() < 0.4:
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
