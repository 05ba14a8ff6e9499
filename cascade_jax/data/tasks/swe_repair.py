"""Repair one token of a small file by a SEARCH/REPLACE block."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.bugs import FILE, bug_fields, code, draw_bug, issue, line
from cascade_jax.data.tasks.words import assistant

# What stands in every answer; each is best one token.
PIECES = ("```\n", "### ", "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", "    return ", "(a, b):\n")


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """A wrong sign, digit or name (0 to 2), or one of these beside another function (3)."""
    return draw_bug(rng, difficulty)


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the verifier."""
    shown = f"### {FILE}\n```\n{code(content)}```"
    return {
        "user": f"{issue(content)}\n{shown}",
        "relevant_file_contents": {FILE: code(content)},
        "instance_id": issue(content),
        **bug_fields(content),
    }


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The line with the right token in place of the wrong one."""
    return assistant(_block(line(content, "wrong"), line(content, "right")))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the right line without the block, or a block that forgets the indentation."""
    if rng.random() < 0.5:
        return assistant(line(content, "right").strip())
    return assistant(_block(line(content, "wrong").strip(), line(content, "right").strip()))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """No block, none that fits, no change, another wrong change, another file."""
    wrong, right = line(content, "wrong"), line(content, "right")
    good = _block(wrong, right)
    texts = [
        "",
        right,
        good.replace("```", ""),
        good.replace("=======\n", ""),
        good.replace(FILE, "n.py"),
        _block(wrong, wrong),
        _block(right, wrong),
        _block(wrong, "    return 1"),
        _block(wrong, f"    return {content['names'][0]}"),
    ]
    return [assistant(text) for text in texts]


def _block(search: str, replace: str) -> str:
    return f"```\n### {FILE}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```"
