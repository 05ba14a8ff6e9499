"""Judges of two answers, in the GenRM convention: two answers in, scores out.

On the wire `genrm` the candidates are messages of the roles `response_1` and `response_2` after the conversation, and a
principle may follow; on the wire `chat` any chat model is asked for the same JSON: `score_1` and `score_2` (1 to 5) and
`ranking` (1: the first is far better, 6: the second is).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cascade_jax.config import JudgeConfig
from cascade_jax.reward import judge_prompts
from cascade_jax.reward.endpoint import Answer, Endpoint, Messages, Request

_FENCED = re.compile(r"```(?:json)?[ \t]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)


class Scores(NamedTuple):
    score_1: float
    score_2: float
    ranking: float


class Comparison(NamedTuple):
    """One question to the judge: final answers, no reasoning. `principle` (may be empty) tells it what to prefer."""

    messages: tuple[Mapping[str, Any], ...]
    response_1: str
    response_2: str
    principle: str = ""


class Judgement(NamedTuple):
    """`scores`, or None and the reason why the judge gave none. `unreadable`: it replied, each time without scores."""

    scores: Scores | None
    failure: str = ""
    unreadable: bool = False


class Judge:
    """Compares pairs, many at a time. Equal comparisons are asked once and remembered. A context manager.

    ConfigError: as Endpoint.
    """

    def __init__(self, config: JudgeConfig):
        self.endpoint = Endpoint(config)
        self._messages = {"genrm": _genrm, "chat": _chat}[config.wire]

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.__exit__()

    def compare(self, comparisons: Sequence[Comparison]) -> list[Judgement]:
        """One judgement per comparison. Failures are retried, then reported, never replaced by a default."""
        requests = [Request(self._messages(comparison)) for comparison in comparisons]
        return [_judgement(answer) for answer in self.endpoint.ask_all(requests, parse_scores)]


def _judgement(answer: Answer) -> Judgement:
    failure = f"no scores in its reply; {answer.failure}" if answer.unreadable else answer.failure
    return Judgement(answer.value, failure, answer.unreadable)


def _genrm(comparison: Comparison) -> Messages:
    extra = [{"role": "principle", "content": comparison.principle}] if comparison.principle else []
    return [
        *({"role": m["role"], "content": m["content"]} for m in comparison.messages),
        {"role": "response_1", "content": comparison.response_1},
        {"role": "response_2", "content": comparison.response_2},
        *extra,
    ]


def _chat(comparison: Comparison) -> Messages:
    conversation = "\n\n".join(f"{m['role']}: {m['content']}" for m in comparison.messages)
    return judge_prompts.comparison(
        conversation, comparison.response_1, comparison.response_2, principle=comparison.principle
    )


def parse_scores(text: str) -> Scores | None:
    """The last fenced JSON with scores, else the last object with scores anywhere; None where neither is.

    The last one, since a judge that thinks aloud may quote an answer, and with it scores that the answer gave itself.
    """
    text = judge_prompts.conclusion(text)
    fenced = [found for block in _FENCED.findall(text) for found in _objects(block)]
    for found in (fenced, list(_objects(text))):
        readable = [scores for scores in map(_scores, found) if scores is not None]
        if readable:
            return readable[-1]
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in running text, in order."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = text.find("{", end)


def _scores(found: Mapping[str, Any]) -> Scores | None:
    overall = found.get("overall")
    values = overall if isinstance(overall, Mapping) else found
    numbers = [_number(values.get(name), high) for name, high in (("score_1", 5), ("score_2", 5), ("ranking", 6))]
    return None if None in numbers else Scores(*numbers)


def _number(value: Any, high: int) -> float | None:
    """A number from 1 to `high`, also as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 1 <= number <= high else None
