"""Problems of olympiads: a program earns the points of a subtask where it passes every test of it.

Row fields: `problem` {subtasks, all_tests, grader_files, compile, run, checker}; `subtask`, the one that is asked for;
`language`, cpp by default. The score of a subtask is its points times the lowest score of its tests (aggregation
min), or times their mean (sum); that of a problem, over several submissions, is the sum of the best of each subtask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cascade_jax.reward.code import Code
from cascade_jax.reward.sandbox import SandboxBroken
from cascade_jax.reward.sandbox.judge import Case, Judgement, Submission, judge
from cascade_jax.reward.verdict import Verdict, unjudged
from cascade_jax.types import Row, Sample

_SOME = 1e-9  # a test with a score below it has none, and a minimum cannot fall lower


class Competitive:
    """Reward: the share of the subtask's points. `info["points"]` are those points. Settings: those of `Code`."""

    def __init__(self, **settings: Any):
        self.code = Code(**settings)

    def verify(self, row: Row, sample: Sample) -> Verdict:
        problem, name = row.fields.get("problem"), row.fields.get("subtask")
        if not isinstance(problem, Mapping) or name not in problem.get("subtasks", {}):
            return unjudged(f"the row has no problem with the subtask {name!r}; load it with its side file")
        row = replace(row, fields={"language": "cpp", **row.fields})
        found = self.code.submission(row, sample)
        if isinstance(found, Verdict):
            return found
        try:
            points, judgement = self.points(problem, str(name), _with_grader(found, row))
        except SandboxBroken as error:
            return unjudged(f"sandbox: {error}", code=found.source)
        subtask = problem["subtasks"][name]
        share = points / subtask["score"]
        passed = sum(score == 1.0 for score in judgement.scores)
        components = {"fraction": passed / len(subtask["test_names"]), "points": points}
        return Verdict(share, components, {"code": found.source, "failure": judgement.failure, "points": points})

    def points(self, problem: Mapping[str, Any], subtask: str, submission: Submission) -> tuple[float, Judgement]:
        """Points of one subtask, rounded to its precision. SandboxBroken: no verdict could be had."""
        wanted = problem["subtasks"][subtask]
        tests = [problem["all_tests"][name] for name in wanted["test_names"]]
        add = wanted.get("aggregation") == "sum"
        cases = [Case(test["input"], test["output"]) for test in tests]
        judgement = self.code.pool.run(judge, submission, cases, 0.0 if add else _SOME)
        scores = [*judgement.scores, *[0.0] * (len(tests) - len(judgement.scores))]
        share = sum(scores) / len(scores) if add else min(scores)
        return round(wanted["score"] * share, wanted.get("score_precision", 2)), judgement

    def close(self) -> None:
        """End the pool; a later call starts it again."""
        self.code.close()


def problem_score(submissions: Sequence[Mapping[str, float]]) -> float:
    """Of several submissions, each {subtask: points}: the best of each subtask, added up."""
    names = {name for points in submissions for name in points}
    return sum(max(points.get(name, 0.0) for points in submissions) for name in names)


def _with_grader(submission: Submission, row: Row) -> Submission:
    problem = row.fields["problem"]
    return replace(
        submission,
        checker=problem.get("checker") or "tokens",
        files=tuple(problem.get("grader_files", {}).items()),
        file_name=f"{row.fields.get('problem_id', 'answer')}.{'py' if submission.language == 'python' else 'cpp'}",
        compile=problem.get("compile", ""),
        run=problem.get("run", ""),
    )
