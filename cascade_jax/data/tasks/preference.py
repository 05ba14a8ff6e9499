"""Describe a thing: a judge prefers what opens politely, names the thing and is short."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import COLORS, WORDS, assistant, other, pick

_REQUESTS = ("Describe", "Explain", "Tell about", "Write about")


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """One thing, or two from difficulty 2 on; coloured at odd difficulties. 128 contents at difficulty 0."""
    things = pick(rng, WORDS, 1 + difficulty // 2)
    colors = pick(rng, COLORS, len(things)) if difficulty % 2 else [""] * len(things)
    topics = [f"{color} {thing}".strip() for color, thing in zip(colors, things, strict=True)]
    return {"request": pick(rng, _REQUESTS, 1)[0], "topics": topics}


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text, which is all that the judge reads, and a fair answer to win against in an evaluation."""
    named = _named(content)
    return {"user": f"{content['request']} the {named}.", "reference": f"Sure! The {named} and the {named}."}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Polite, on the topic, short."""
    return assistant(f"Sure! The {_named(content)}.")


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical weaker answer: curt, or polite and long."""
    named = _named(content)
    if rng.random() < 0.6:
        return assistant(f"The {named}.")
    return assistant(f"Sure! The {named} and the {named}.")


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Answers that the judge likes less than the oracle's: curt, long, off the topic."""
    named, stranger = _named(content), other(rng, WORDS, *content["topics"])
    texts = [
        f"The {named}.",
        f"Sure! The {named} and the {named} and the {named}.",
        f"Sure! The {stranger} it is.",
        "No.",
    ]
    return [assistant(text) for text in texts]


def _named(content: dict[str, Any]) -> str:
    return " and the ".join(content["topics"])
