"""Agentless repair in one turn: SEARCH/REPLACE blocks, graded by tests or by a judge (recipe.md 12).

Row fields: `relevant_file_contents` (or `files`), which the prompt shows; for tests FAIL_TO_PASS, PASS_TO_PASS and
`test_files` or `test_patch`, with a `repository` and `base_commit` where the files shown are not all of it; for a judge
`problem_statement` and the gold `patch`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cascade_jax.reward import judge_prompts
from cascade_jax.reward.endpoint import Endpoint, Request
from cascade_jax.reward.judged import question_of
from cascade_jax.reward.sandbox import SandboxBroken
from cascade_jax.reward.swe.edits import Inapplicable, Unparsable, apply_edits, parse_edits
from cascade_jax.reward.swe.gold import difference, patched
from cascade_jax.reward.swe.grading import MIB, Room, grade
from cascade_jax.reward.swe.instance import InstanceError, patched_paths, read_instance
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample


@dataclass(frozen=True)
class AgentlessRepair:
    """-1 without the format, 0 where the code stays as it is or the edits cannot be made; else the grade of the repair.

    `tests`: 1 if all pass, else 0. `judge`: 1 for what the gold patch does to the files, else the share of `verdicts`
    that say YES (Cascade 1 paper, Eq. 2, with samples in place of the probability of YES). Sizes in MiB; `repositories`
    and `packages` as in `SoftwareRepair`.
    """

    grading: Literal["tests", "judge"] = "tests"
    unparsable: float = -1.0
    verdicts: int = 4
    repositories: str = ""
    packages: Sequence[str] = ()
    tests_seconds: float = 120.0
    memory: int = 2048
    disk: int = 1024
    judge: Endpoint | None = None  # given when a run starts

    def __post_init__(self) -> None:
        if self.grading not in ("tests", "judge"):
            raise ValueError(f"grading={self.grading!r} is not known; allowed are tests, judge.")
        if self.verdicts < 1:
            raise ValueError(f"verdicts={self.verdicts} must be 1 or more.")

    def verify(self, row: Row, sample: Sample) -> Verdict:
        files = row.fields.get("relevant_file_contents") or row.fields.get("files")
        if not files:
            return unjudged("the row shows no files: relevant_file_contents is empty")
        early = unanswered(sample)
        if early is not None:
            return early
        try:
            changed = apply_edits(files, parse_edits(reply_of(sample).content))
        except Unparsable as error:
            return Verdict(self.unparsable, {"parsable": 0.0}, {"reason": str(error)})
        except Inapplicable as error:
            return wrong(str(error))
        if not changed:
            return wrong("the edits leave the code as it is")
        try:
            return self._by_tests(row, changed) if self.grading == "tests" else self._by_judge(row, files, changed)
        except (InstanceError, SandboxBroken) as error:
            return unjudged(str(error))

    def _by_tests(self, row: Row, changed: Mapping[str, str]) -> Verdict:
        room = Room(self.memory * MIB, self.disk * MIB, packages=tuple(self.packages))
        instance = read_instance(row, repositories=self.repositories)
        changes = {path: text.encode() for path, text in changed.items()}
        found = grade(instance, changes, room, seconds=self.tests_seconds)
        components = {"parsable": 1.0, "tests_passed": found.passed / found.asked}
        return Verdict(float(found.resolved), components, {"reason": found.reason, "failed": list(found.failed[:20])})

    def _by_judge(self, row: Row, files: Mapping[str, str], changed: Mapping[str, str]) -> Verdict:
        gold = row.fields.get("patch")
        if not gold:
            return unjudged("the row has no gold patch for the judge to compare with")
        if _as_gold(files, gold, changed):
            return Verdict(1.0, {"parsable": 1.0, "as_gold": 1.0})
        if self.judge is None:
            return unjudged("no judge is set")
        issue = row.fields.get("problem_statement") or question_of(row)
        asked = judge_prompts.repair(issue, gold, difference(files, changed))
        answers = self.judge.ask_all([Request(asked, draw) for draw in range(self.verdicts)], judge_prompts.read_yes)
        failure = next((answer.failure for answer in answers if answer.value is None), None)
        if failure is not None:
            return unjudged(failure)
        share = sum(bool(answer.value) for answer in answers) / len(answers)
        return Verdict(share, {"parsable": 1.0, "as_gold": 0.0})


def _as_gold(files: Mapping[str, str], gold: str, changed: Mapping[str, str]) -> bool:
    """Whether the files come out as the gold patch makes them; never where it changes more than the files shown."""
    if not patched_paths(gold) <= set(files):
        return False
    try:
        return patched(files, gold) == dict(changed)
    except InstanceError:  # written for other contents than those shown: only the judge can tell
        return False
