"""The small world that all generated tasks share: each of these is one token, so that copying it is one step."""

from typing import Any

import numpy as np

# No word contains another, and none is part of a common word of the prompts.
WORDS = (
    *("apple", "bell", "bird", "boat", "book", "cake", "cup", "desk", "drum", "fish", "frog", "glove", "goat", "hat"),
    *("jar", "kite", "lamp", "leaf", "moon", "mug", "nest", "owl", "pen", "plum", "ring", "rose", "shoe", "spoon"),
    *("tent", "vase", "wolf", "yarn"),
)
COLORS = ("red", "blue", "green", "black", "white", "pink", "gray", "gold")
LETTERS = ("A", "B", "C", "D")


def assistant(content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message in canonical form."""
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One tool call in canonical form."""
    return {"id": "", "type": "function", "function": {"name": name, "arguments": arguments}}


def pick(rng: np.random.Generator, choices: tuple[str, ...], count: int) -> list[str]:
    """`count` different choices in random order."""
    return [choices[i] for i in rng.permutation(len(choices))[:count]]


def other(rng: np.random.Generator, choices: tuple[str, ...], *taken: str) -> str:
    """One choice that is none of the taken ones."""
    left = [choice for choice in choices if choice not in taken]
    return left[rng.integers(len(left))]
