"""Write a line of Python: a program that reads one number, or a function of two."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import assistant

_SIGNS = {"add": "+", "times": "*", "less": "-", "mod": "%"}
_ONE = (("add",), ("times", "less"), ("mod", "add", "times"))  # by difficulty: what is done to the number
_TWO = {"sum": "a+b", "product": "a*b", "difference": "a-b", "larger": "max(a,b)", "smaller": "min(a,b)"}
_NUMBERS = (0, 1, 2, 5, 9, 10, 37, -4)
_PAIRS = ((0, 0), (1, 2), (2, 1), (5, 5), (-3, 4), (10, -7), (8, 3))


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: n + c; 1: n * c or n - c; 2: n % c, n + c or n * c with a larger c; 3: two steps on two numbers."""
    if difficulty == 3:
        return {"of": str(rng.choice(sorted(_TWO))), "then": "add", "by": int(rng.integers(1, 30))}
    low, high = ((1, 60), (2, 60), (60, 100))[difficulty]
    return {"then": str(rng.choice(_ONE[difficulty])), "by": int(rng.integers(low, high))}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    if "of" in content:
        inputs = [f"{a}\n{b}" for a, b in _PAIRS]
        outputs = [str(eval(_formula(content), {"a": a, "b": b, "max": max, "min": min})) for a, b in _PAIRS]
        user = f"def f(a,b): {content['of']} {content['then']} {content['by']}"
        return {"user": user, "unit_tests": {"inputs": inputs, "outputs": outputs, "fn_name": "f"}}
    outputs = [str(eval(_formula(content), {"n": n})) for n in _NUMBERS]
    tests = {"inputs": [f"{n}\n" for n in _NUMBERS], "outputs": outputs, "fn_name": None}
    return {"user": f"print n {content['then']} {content['by']}", "unit_tests": tests}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A right program in a block."""
    return assistant(_block(_program(content)))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the right program without its block, or with another number."""
    if rng.random() < 0.5:
        return assistant(_program(content))
    return assistant(_block(_program({**content, "by": content["by"] + int(rng.integers(1, 5))})))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """No block, another number, an operation that differs, an expected value by rote, and programs that break."""
    tests, right = fields(content)["unit_tests"], _program(content)
    rote = tests["outputs"][0]
    wrong = [
        _program({**content, "by": content["by"] + 1}),
        right.replace(_SIGNS[content["then"]] + str(content["by"]), "//" + str(content["by"])),
        f"def f(a,b): return {rote}" if "of" in content else f"print({rote})",
        right + ")",
        "import os; os._exit(0)",
        "",
    ]
    return [assistant(""), assistant(right), *(assistant(_block(program)) for program in wrong)]


def _formula(content: dict[str, Any]) -> str:
    return f"{_TWO[content['of']] if 'of' in content else 'n'}{_SIGNS[content['then']]}{content['by']}"


def _program(content: dict[str, Any]) -> str:
    if "of" in content:
        return f"def f(a,b): return {_formula(content)}"
    return f"print({_formula(content).replace('n', 'int(input())', 1)})"


def _block(program: str) -> str:
    return f"```\n{program}\n```"
