"""Repair one token of a file in a repository with a shell: look, change, submit. Answers are lists of messages."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.bugs import FILE, bug_fields, code, draw_bug, issue, line
from cascade_jax.data.tasks.words import assistant

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SILENT = "[no output]"  # what the shell shows after a command that says nothing
PIECES = ("```\n", SUBMIT, f"cat {FILE}\n", "sed -i 's/", f"/' {FILE}\n", SILENT, "    return ", "(a, b):\n")
Messages = list[dict[str, Any]]


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """A wrong sign, digit or name (0 to 2), or one of these beside another function (3)."""
    return draw_bug(rng, difficulty)


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the columns of the environment: a repository that stands in the row."""
    return {
        "user": f"In {FILE} {issue(content)}.",
        "instance_id": issue(content),
        "files": {FILE: code(content)},
        "history": [{"message": "Start", "files": {"README": content["names"][0]}}],
        **bug_fields(content),
    }


def oracle(content: dict[str, Any], rng: np.random.Generator) -> Messages:
    """Look at the file (at the higher difficulties), change the line, submit."""
    look = [bash(f"cat {FILE}"), said(code(content).rstrip("\n"))] if len(content["names"]) > 1 else []
    return [*look, _change(content, "right"), said(SILENT), bash(SUBMIT)]


def habit(content: dict[str, Any], rng: np.random.Generator) -> Messages:
    """The typical wrong try: submits without a change, or changes the wrong way round, which changes nothing."""
    if rng.random() < 0.5:
        return [bash(f"cat {FILE}"), said(code(content).rstrip("\n")), bash(SUBMIT)]
    return [_sed(_expression(content, "right"), _expression(content, "wrong")), said(SILENT), bash(SUBMIT)]


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[Messages]:
    """No command, no change, another wrong change, a change of the tests alone, a file that is gone."""
    return [
        [bash(SUBMIT)],
        [_sed(_expression(content, "wrong"), "1"), said(SILENT), bash(SUBMIT)],
        [bash("echo 'def test(): pass' > test_m.py"), said(SILENT), bash(SUBMIT)],
        [bash(f"rm {FILE}"), said(SILENT), bash(SUBMIT)],
    ]


def bash(command: str) -> dict[str, Any]:
    """A turn of the assistant's: one command."""
    return assistant(f"```\n{command}\n```")


def said(output: str) -> dict[str, Any]:
    """What the shell shows."""
    return {"role": "user", "content": output}


def _change(content: dict[str, Any], part: str) -> dict[str, Any]:
    return _sed(_expression(content, "wrong"), _expression(content, part))


def _sed(old: str, new: str) -> dict[str, Any]:
    return bash(f"sed -i 's/{old.replace('*', chr(92) + '*')}/{new}/' {FILE}")


def _expression(content: dict[str, Any], part: str) -> str:
    return line(content, part).removeprefix("    return ")
