"""The judge of the demo, rules in place of a model.

Of two answers it likes a polite opening, the topic asked for, few words. An answer agrees with the official one where
it has the same words. A proof is a derivation, which is checked exactly.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cascade_jax.reward import derivation, judge_prompts
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
    return scores(quality(response_1, topic), quality(response_2, topic))


def scores(first: float, second: float) -> dict[str, float]:
    """Two qualities in the GenRM convention."""
    return {"score_1": first, "score_2": second, "ranking": _ranking(second - first)}


def reply(messages: Sequence[Mapping[str, Any]], compare: Callable[..., Mapping[str, float] | str] = compare) -> str:
    """The reply to a question of `judge_prompts`. ValueError: the last message is none."""
    sections = judge_prompts.read_sections(str(messages[-1]["content"]) if messages else "")
    if "RESPONSE 1" in sections:
        asked = {"role": "user", "content": sections["CONVERSATION"].rpartition("user: ")[2]}
        scores = compare([asked], sections["RESPONSE 1"], sections["RESPONSE 2"])
        return scores if isinstance(scores, str) else json.dumps(scores)
    if "ANSWER A" in sections:
        return f"[[{_label(sections)}]]"
    if "CANDIDATE ANSWER" in sections:
        official, candidate = (_WORD.findall(sections[f"{who} ANSWER"].lower()) for who in ("OFFICIAL", "CANDIDATE"))
        return "CORRECT" if official == candidate else "INCORRECT"
    if "PROOF" in sections:
        task = derivation.read(sections["PROBLEM"])
        fault = task.fault(sections["PROOF"]) if task else "no derivation is asked for"
        return f"{fault}\nPOINTS: 0" if fault else f"POINTS: {judge_prompts.MOST_POINTS}"
    raise ValueError("the message is no question for a judge")


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


def _label(sections: Mapping[str, str]) -> str:
    asked = {"role": "user", "content": sections["USER"]}
    ranking = compare([asked], sections["ANSWER A"], sections["ANSWER B"])["ranking"]
    if ranking == 3.5:
        return "A=B"
    return judge_prompts.LABELS[{1: 0, 6: 4}.get(ranking, 1 if ranking < 3.5 else 3)]


def _ranking(second_ahead: float) -> float:
    if second_ahead == 0:
        return 3.5
    size = 1 if abs(second_ahead) < 0.75 else 2 if abs(second_ahead) < 1.5 else 3
    return 3.0 + size if second_ahead > 0 else 4.0 - size


_OPENERS = [opener.split() for opener in OPENERS]
