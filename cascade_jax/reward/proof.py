"""Proofs, graded by a judge with up to seven points (recipe 14.2).

Row fields: `rubric` and `reference`, a marking scheme and a solution, either of which may be missing; `question`.
"""

from dataclasses import dataclass

from cascade_jax.reward import judge_prompts
from cascade_jax.reward.endpoint import Endpoint, Request
from cascade_jax.reward.judged import question_of
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample

_COMPLETE = 6  # points from which on a proof counts as correct


@dataclass(frozen=True)
class ProofGrade:
    """Points / 7: 0 if any of the gradings is 0, else their mean. The paper grades each proof 64 times."""

    gradings: int = 1
    judge: Endpoint | None = None  # given when a run starts

    def __post_init__(self) -> None:
        if self.gradings < 1:
            raise ValueError(f"gradings={self.gradings} must be 1 or more.")

    def verify(self, row: Row, sample: Sample) -> Verdict:
        early = unanswered(sample)
        if early is not None:
            return early
        if self.judge is None:
            return unjudged("no judge is set")
        fields, proof = row.fields, reply_of(sample).content.strip()
        if not proof:
            return wrong("a call is no proof")
        messages = judge_prompts.grading(
            question_of(row), proof, rubric=fields.get("rubric") or "", reference=fields.get("reference") or ""
        )
        requests = [Request(messages, draw) for draw in range(self.gradings)]
        answers = self.judge.ask_all(requests, judge_prompts.read_points)
        points = [answer.value for answer in answers if answer.value is not None]
        if 0 not in points and len(points) < len(answers):
            return unjudged(next(answer.failure for answer in answers if answer.value is None))
        total = combined(points)
        return Verdict(
            total / judge_prompts.MOST_POINTS, {"points": total, "correct": float(total >= _COMPLETE)}, {"all": points}
        )


def combined(points: list[int]) -> float:
    """0 if any grading is 0, else the mean: one reader who finds a fatal gap outweighs those who miss it."""
    return 0.0 if 0 in points else sum(points) / len(points)
