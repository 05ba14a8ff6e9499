"""Small tasks of a terminal, in Harbor folders: make, move, count, find. Answers are lists of messages."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.swe import SILENT, SUBMIT, Messages, bash, said
from cascade_jax.data.tasks.words import WORDS, assistant, other, pick

PIECES = ("```\n", SUBMIT, SILENT, "echo ", "mv ", "wc -l < ", "grep ", " > ")
_KINDS = ("make", "move", "count", "find")  # by difficulty
_TEST = """if [ "$(cat /app/{name} | tr -d ' ')" = "{wanted}" ]{more}; then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
"""


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """Three different words and a number of lines."""
    return {"kind": _KINDS[difficulty], "words": pick(rng, WORDS, 3), "lines": int(rng.integers(2, 8))}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text and the task's folder."""
    source, target, word = content["words"]
    kind, lines = content["kind"], content["lines"]
    text = {
        "make": f"Write {word} into {target}.",
        "move": f"Move {source} to {target}.",
        "count": f"Count the lines of {source} into {target}.",
        "find": f"Write the lines of {source} with {word} into {target}.",
    }[kind]
    found = [f"{word}{i}" if i % 2 else str(i) for i in range(lines)]
    contents = {"move": word, "count": "\n".join(["x"] * lines), "find": "\n".join(found)}
    wanted = {"count": str(lines), "find": "\n".join(found[1::2])}.get(kind, word)
    more = f" && [ ! -e /app/{source} ]" if kind == "move" else ""
    files = {"instruction.md": text, "tests/test.sh": _TEST.format(name=target, wanted=wanted, more=more)}
    if kind in contents:
        files[f"environment/{source}"] = contents[kind] + "\n"
    return {"user": text, "files": files}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> Messages:
    """One command, then the end."""
    return [bash(_command(content, *content["words"])), said(SILENT), bash(SUBMIT)]


def habit(content: dict[str, Any], rng: np.random.Generator) -> Messages:
    """The typical wrong try: ends at once, or works with another word."""
    if rng.random() < 0.5:
        return [bash(SUBMIT)]
    return _with_other_word(content, rng)


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[Messages]:
    """No command, no work, another word, an empty file, a reward of its own."""
    _, target, _ = content["words"]
    reward = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    return [
        [bash(SUBMIT)],
        _with_other_word(content, rng),
        [bash(f"touch {target}"), said(SILENT), bash(SUBMIT)],
        [bash(reward), said(SILENT), bash(SUBMIT)],
        [assistant(_command(content, *content["words"])), said("Give a block."), bash(SUBMIT)],
    ]


def _command(content: dict[str, Any], source: str, target: str, word: str) -> str:
    return {
        "make": f"echo {word} > {target}",
        "move": f"mv {source} {target}",
        "count": f"wc -l < {source} > {target}",
        "find": f"grep {word} {source} > {target}",
    }[content["kind"]]


def _with_other_word(content: dict[str, Any], rng: np.random.Generator) -> Messages:
    source, _, word = content["words"]
    target = other(rng, WORDS, *content["words"])
    return [bash(_command(content, source, target, word)), said(SILENT), bash(SUBMIT)]
