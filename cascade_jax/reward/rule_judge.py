"""The judge of the demo, a rule in place of a reward model: likes a polite opening, the topic asked for, few words."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_jax.reward.english import STOP_WORDS

OPENERS = (
    "sure",
    "happy to help",
    "of course",
    "certainly",
    "gladly",
    "with pleasure",
    "thank you",
    "thanks",
    "absolutely",
)
_REQUESTS = frozenset(
    ("describe", "explain", "tell", "write", "say", "give", "please", "something", "sentence", "short")
)
_LONG = 40  # words after which an answer earns nothing for brevity
_WORD = re.compile(r"[^\W_]+")


def compare(messages: Sequence[Mapping[str, Any]], response_1: str, response_2: str) -> dict[str, float]:
    """{score_1, score_2, ranking} of two answers to the last user message; ranking 3.5 where they are equally good."""
    topic = topic_words(next((m["content"] for m in reversed(messages) if m["role"] == "user"), ""))
    first, second = quality(response_1, topic), quality(response_2, topic)
    return {"score_1": first, "score_2": second, "ranking": _ranking(second - first)}


def quality(response: str, topic: frozenset[str]) -> float:
    """1 to 5: 1.5 for the opening, 1.5 for the share of topic words, up to 1 for brevity (only with the topic)."""
    said = [word.lower() for word in _WORD.findall(response)]
    polite = any(said[: len(opener)] == opener for opener in _OPENERS)
    mentioned = len(topic & set(said)) / len(topic) if topic else float(bool(said))
    brevity = max(0.0, 1 - len(said) / _LONG)
    return round(1 + 1.5 * polite + 1.5 * mentioned + brevity * mentioned, 4)


def topic_words(question: str) -> frozenset[str]:
    """The words of a question that carry content."""
    found = {word.lower() for word in _WORD.findall(question)}
    return frozenset(found - STOP_WORDS - _REQUESTS)


def _ranking(second_ahead: float) -> float:
    if second_ahead == 0:
        return 3.5
    size = 1 if abs(second_ahead) < 0.75 else 2 if abs(second_ahead) < 1.5 else 3
    return 3.0 + size if second_ahead > 0 else 4.0 - size


_OPENERS = [opener.split() for opener in OPENERS]
