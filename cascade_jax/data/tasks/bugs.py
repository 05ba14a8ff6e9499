"""Files of one or two small functions with one token that is wrong, and the tests that show it."""

import difflib
from collections.abc import Callable
from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import WORDS, other, pick

FILE = "m.py"
_SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_DIGITS = tuple("23456789")
_CASES = ((7, 3), (2, 5), (0, 4))  # at which the signs, the digits and the names all give something else


def draw_bug(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: a wrong sign; 1: a wrong digit; 2: a wrong name; 3: any of them, beside a function that is right."""
    names = pick(rng, WORDS, 2 if difficulty == 3 else 1)
    kind = ("sign", "digit", "name")[rng.integers(3) if difficulty == 3 else difficulty]
    sign = pick(rng, tuple(_SIGNS), 1)[0]
    digit = _DIGITS[rng.integers(len(_DIGITS))]
    first, second = ("b", digit) if kind == "name" else ("a", "b" if kind == "sign" else digit)
    if kind == "sign":
        wrong = (first, other(rng, tuple(_SIGNS), sign), second)
    elif kind == "digit":
        wrong = (first, sign, other(rng, _DIGITS, digit))
    else:
        wrong = ("a", sign, second)
    return {"names": names, "right": [first, sign, second], "wrong": list(wrong)}


def code(content: dict[str, Any], part: str = "wrong") -> str:
    """The file with the `wrong` line, or with the `right` one."""
    names = content["names"]
    lines = [f"def {names[0]}(a, b):", line(content, part)]
    return "\n".join([*lines, *([f"def {names[1]}(a):", "    return a"] if len(names) > 1 else [])]) + "\n"


def line(content: dict[str, Any], part: str) -> str:
    """The line in question, with its indentation."""
    return f"    return {' '.join(content[part])}"


def issue(content: dict[str, Any]) -> str:
    """What is wrong, in a few words; no two contents have the same."""
    first, *second = content["names"]
    beside = f", {second[0]} is right" if second else ""
    return f"{first} has {' '.join(content['wrong'])} for {' '.join(content['right'])}{beside}"


def bug_fields(content: dict[str, Any]) -> dict[str, Any]:
    """The columns of the tests and of the gold patch."""
    name = content["names"][0]
    first, sign, second = content["right"]

    def value(token: str, a: int, b: int) -> int:
        return {"a": a, "b": b}[token] if token in "ab" else int(token)

    cases = [(a, b, _SIGNS[sign](value(first, a, b), value(second, a, b))) for a, b in _CASES]
    checks = "\n".join(f"    assert {name}({a}, {b}) == {wanted}" for a, b, wanted in cases)
    diff = difflib.unified_diff(
        code(content).splitlines(True), code(content, "right").splitlines(True), f"a/{FILE}", f"b/{FILE}"
    )
    return {
        "problem_statement": issue(content),
        "test_files": {"test_m.py": f"from m import {name}\n\n\ndef test_{name}():\n{checks}\n"},
        "FAIL_TO_PASS": [f"test_m.py::test_{name}"],
        "PASS_TO_PASS": [],
        "patch": "".join(diff),
    }
