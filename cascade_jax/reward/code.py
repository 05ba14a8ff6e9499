"""Programs against unit tests, each program in a sandbox.

Row fields: `unit_tests` {inputs, outputs, fn_name}; `language` python (default) or cpp; `checker`, see
`sandbox.checkers`; `time_limit` in seconds. Without fn_name an input is stdin and an output is stdout; with it, an
input holds one JSON value per line, the arguments, and an output is a JSON value (LiveCodeBench's rows).
"""

import json
import re
from dataclasses import replace
from typing import Any

from cascade_jax.reward.sandbox import Limits, SandboxBroken
from cascade_jax.reward.sandbox.judge import Case, Judgement, Submission, judge
from cascade_jax.reward.sandbox.pool import SandboxPool
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample

_BLOCK = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\n`]*)\n(.*?)^[ \t]*\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
_CPP = ("cpp", "c++", "cc", "cxx")
_MAX_CHARS = 200_000  # of a program


class Code:
    """1 where all tests pass, else 0; the share of tests passed until the first that fails is a component.

    limits: of each program. workers, queue, address: of the pool (`sandbox.pool`). allow_unsafe: run programs even
    where this machine cannot isolate them.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        workers: int | None = None,
        queue: int = 1024,
        address: str | None = None,
        allow_unsafe: bool = False,
    ):
        self.limits, self.allow_unsafe = limits or Limits(), allow_unsafe
        self.pool = SandboxPool(workers=workers, queue=queue, address=address)

    def verify(self, row: Row, sample: Sample) -> Verdict:
        try:
            tests = tests_of(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return unjudged(f"unit_tests cannot be read: {error}")
        found = self.submission(row, sample)
        if isinstance(found, Verdict):
            return found
        found = replace(
            found, function=row.fields["unit_tests"].get("fn_name"), checker=row.fields.get("checker") or "tokens"
        )
        try:
            judgement = self.pool.run(judge, found, tests)
        except SandboxBroken as error:
            return unjudged(f"sandbox: {error}", code=found.source)
        return _verdict(judgement, len(tests), found)

    def submission(self, row: Row, sample: Sample) -> Submission | Verdict:
        """The program of an answer, or the verdict where there is none."""
        early = unanswered(sample)
        if early is not None:
            return early
        block = last_block(reply_of(sample).content)
        if block is None:
            return wrong("no fenced block of code")
        tag, source = block
        if len(source) > _MAX_CHARS:
            return wrong(f"the program is longer than {_MAX_CHARS} characters")
        language = row.fields.get("language") or ("cpp" if tag.lower() in _CPP else "python")
        seconds = float(row.fields.get("time_limit") or self.limits.seconds)
        return Submission(source, language, limits=replace(self.limits, seconds=seconds), unsafe=self.allow_unsafe)

    def close(self) -> None:
        """End the pool; a later call starts it again."""
        self.pool.close()


def tests_of(row: Row) -> list[Case]:
    """The unit tests. ValueError: a function's input or output is not JSON."""
    given: dict[str, Any] = row.fields["unit_tests"]
    pairs = list(zip(given["inputs"], given["outputs"], strict=True))
    if not pairs:
        raise ValueError("there are none")
    if not given.get("fn_name"):
        return [Case(stdin, answer) for stdin, answer in pairs]
    tests = []
    for text, answer in pairs:
        arguments = tuple(json.loads(line) for line in text.split("\n") if line.strip())
        tests.append(Case("", json.loads(answer), arguments))
    return tests


def last_block(text: str) -> tuple[str, str] | None:
    """The language tag and the content of the last fenced block that is closed."""
    found = list(_BLOCK.finditer(text))
    return (found[-1][2].strip().split(" ")[0], found[-1][3]) if found else None


def _verdict(judgement: Judgement, count: int, submission: Submission) -> Verdict:
    passed = sum(score == 1.0 for score in judgement.scores)
    info = {"code": submission.source, "failure": judgement.failure, "test": len(judgement.scores) - 1}
    components = {"fraction": passed / count, "compiles": float(bool(judgement.scores))}
    return Verdict(float(passed == count), components, info)
