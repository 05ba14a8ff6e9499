"""Generated tasks: rows in the NeMo-Gym schemas that a model of a few hundred thousand parameters learns in minutes.

A task is a module with draw(rng, difficulty) -> content (plain JSON), fields(content), oracle(content, rng),
habit(content, rng) and wrong_answers(content, rng). Its name is the `kind` of its rows. The same content always falls
into the same split.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from cascade_jax.data.tasks import (
    code,
    instruction_following,
    long_context,
    math,
    mcqa,
    preference,
    proof,
    structured_output,
    tool_call,
)
from cascade_jax.data.tasks.words import COLORS, WORDS
from cascade_jax.data.tokenizer import Tokenizer, train_sentencepiece
from cascade_jax.seeding import derive
from cascade_jax.types import Row

TASKS: dict[str, ModuleType] = {
    "instruction_following": instruction_following,
    "mcqa": mcqa,
    "tool_call": tool_call,
    "structured_output": structured_output,
    "math": math,
    "preference": preference,
    "long_context": long_context,
    "proof": proof,
    "code": code,
}
# Whose texts the tokenizer learns from; the others make do with it.
SPOKEN = ("instruction_following", "mcqa", "tool_call", "structured_output", "math", "preference")
SPLITS = ("train", "validation", "test")
_PATIENCE = 100  # draws in a row without a new content, after which that difficulty counts as used up


def generate(
    task: str,
    split: str,
    rows: int,
    *,
    seed: int = 0,
    difficulty: Sequence[int] = (0, 1, 2, 3),
    wrong_share: float = 0.5,
) -> list[Row]:
    """Rows, each with a `demonstration`; `wrong_share` of these have a typical fault, which RL has to sharpen away.

    Contents repeat only after all that the split holds (about 80 / 10 / 10 % of the space) were drawn.
    """
    if task not in TASKS:
        raise ValueError(f"the task {task!r} does not exist; choose one of {', '.join(TASKS)}.")
    if split not in SPLITS:
        raise ValueError(f"the split {split!r} does not exist; choose one of {', '.join(SPLITS)}.")
    levels = range(instruction_following.LEVELS if task == "instruction_following" else 4)
    if not difficulty or not set(difficulty) <= set(levels):
        raise ValueError(f"difficulty={tuple(difficulty)} must be some of {', '.join(map(str, levels))}.")
    rng = np.random.default_rng(derive(seed, task, split))
    made: list[Row] = []
    seen: set[str] = set()
    used_up: set[int] = set()  # difficulties of which the split holds nothing new
    for i in range(rows):
        level = int(difficulty[rng.integers(len(difficulty))])
        for _ in range(1 if level in used_up else _PATIENCE):
            content, digest = _draw(task, split, level, rng)
            if digest not in seen:
                break
        else:
            used_up.add(level)
        seen.add(digest)
        row = _row(task, content, level, f"{task}-{digest[:16]}")
        message = demonstration(row, np.random.default_rng(derive(seed, digest, i)), wrong_share=wrong_share)
        made.append(dataclasses.replace(row, fields={**row.fields, "demonstration": message}))
    return made


def oracle(row: Row, rng: np.random.Generator) -> dict[str, Any]:
    """A right answer to a generated row, as an assistant's message."""
    return TASKS[row.kind].oracle(row.extra["content"], rng)


def wrong_answers(row: Row, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Answers that the row's verifier refuses (for `preference`: that the judge likes less than the oracle's)."""
    return TASKS[row.kind].wrong_answers(row.extra["content"], rng)


def demonstration(row: Row, rng: np.random.Generator, *, wrong_share: float = 0.5) -> dict[str, Any]:
    """The oracle's answer or, in a share of the draws, the typical wrong one."""
    chosen = TASKS[row.kind].habit if rng.random() < wrong_share else TASKS[row.kind].oracle
    return chosen(row.extra["content"], rng)


def corpus(seed: int = 0, rows: int = 400) -> list[str]:
    """Texts of tasks, without the template, to train a tokenizer on."""
    texts = []
    for task in SPOKEN:
        for row in generate(task, "train", rows, seed=seed):
            message = row.fields["demonstration"]
            texts += [row.messages[-1]["content"], message["content"]]
            texts += [f"{name} {key}" for name, key in _names(row)]
    return [text for text in texts if text]


def train_tokenizer(path: str | Path, *, seed: int = 0, vocab_size: int = 512) -> Tokenizer:
    """The tasks' vocabulary: words, colours and the constant parts of the chat template are single tokens."""
    from cascade_jax.data.chat import template_pieces

    pieces = [*template_pieces(), *WORDS, *COLORS, "\\boxed{", '{"', '": "', '", "', '": ', ', "', '"}', "] ["]
    return train_sentencepiece(corpus(seed), path, vocab_size=vocab_size, pieces=pieces)


def _split_of(digest: str) -> str:
    tenth = int(digest[:8], 16) % 10
    return SPLITS[1] if tenth == 0 else SPLITS[2] if tenth == 1 else SPLITS[0]


def _draw(task: str, split: str, difficulty: int, rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """A content of the split, and its digest."""
    while True:
        content = TASKS[task].draw(rng, difficulty)
        digest = hashlib.sha256(json.dumps([task, content], sort_keys=True).encode()).hexdigest()
        if _split_of(digest) == split:
            return content, digest


def _row(task: str, content: dict[str, Any], difficulty: int, name: str) -> Row:
    fields = dict(TASKS[task].fields(content))
    messages = ({"role": "user", "content": fields.pop("user")},)
    tools = tuple(fields.pop("tools", ()))
    return Row(name, task, messages, tools, fields, {"difficulty": difficulty, "content": content})


def _names(row: Row) -> list[tuple[str, str]]:
    functions = [tool["function"] for tool in row.tools]
    return [(function["name"], key) for function in functions for key in function["parameters"]["properties"]]
