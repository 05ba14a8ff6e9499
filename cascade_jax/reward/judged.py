"""Answers that a judge compares with the official one: long-context questions, AA-LCR, answers of olympiads.

Row fields: `expected_answer`; `question`, by default the last user message.
"""

from dataclasses import dataclass

from cascade_jax.reward import judge_prompts
from cascade_jax.reward.endpoint import Endpoint, Request
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample


@dataclass(frozen=True)
class JudgedAnswer:
    """1 if the judge finds that the final answer agrees with the official one (recipe 10).

    `both_orders`: it has to find so whichever of the two it reads first.
    """

    both_orders: bool = False
    judge: Endpoint | None = None  # given when a run starts

    def verify(self, row: Row, sample: Sample) -> Verdict:
        official = str(row.fields.get("expected_answer") or "").strip()
        if not official:
            return unjudged("the row has no expected_answer")
        early = unanswered(sample)
        if early is not None:
            return early
        if self.judge is None:
            return unjudged("no judge is set")
        question = question_of(row)
        candidate = reply_of(sample).content.strip() or "(no text)"
        asked = [
            Request(judge_prompts.agreement(question, official, candidate, candidate_first=swapped))
            for swapped in ([False, True] if self.both_orders else [False])
        ]
        answers = [self.judge.ask(request, judge_prompts.read_agreement) for request in asked]
        failure = next((answer.failure for answer in answers if answer.value is None), None)
        if failure is not None:
            return unjudged(failure)
        found = [bool(answer.value) for answer in answers]
        return Verdict(float(all(found)), {"orders_differ": float(len(set(found)) > 1)} if self.both_orders else {})


def question_of(row: Row) -> str:
    """The row's `question`, else its last user message."""
    asked = (m["content"] for m in reversed(row.messages) if m["role"] == "user")
    return str(row.fields.get("question") or next(asked, ""))
