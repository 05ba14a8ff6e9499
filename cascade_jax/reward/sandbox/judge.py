"""One program against its tests: run in a sandbox, compared outside it.

What is expected never enters the sandbox of the program, so there is nothing in it to read, to patch or to forge: all
that a program can give is an output, and only the right one is right.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cascade_jax.reward.sandbox.backend import open_sandbox
from cascade_jax.reward.sandbox.box import Sandbox
from cascade_jax.reward.sandbox.checkers import COMPARISONS, read_result, same_values
from cascade_jax.reward.sandbox.limits import MIB, Finished, Limits, SandboxBroken

_COMPILE = Limits(seconds=60.0, memory=2048 * MIB)
_CHECK_SECONDS = 10.0
_GXX = ("g++", "-O2", "-std=gnu++17", "-pipe", "-o", "answer")


@dataclass(frozen=True)
class Case:
    """`answer`: the expected output; with a function, the expected JSON value, and `arguments` instead of stdin."""

    stdin: str = ""
    answer: Any = ""
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Submission:
    """A program. `files` lie beside it; `compile` and `run` are shell scripts that replace the language's own way."""

    source: str
    language: Literal["python", "cpp"] = "python"
    function: str | None = None
    checker: str = "tokens"
    limits: Limits = field(default_factory=Limits)
    files: tuple[tuple[str, str], ...] = ()
    file_name: str = "answer.cpp"
    compile: str = ""
    run: str = ""
    unsafe: bool = False  # run it even where nothing isolates


@dataclass(frozen=True)
class Judgement:
    """The score (0 to 1) of each test that was run, in order. `failure` says what was wrong in the first below 1."""

    scores: tuple[float, ...]
    failure: str | None = None


def judge(submission: Submission, tests: Sequence[Case], stop_below: float = 1.0) -> Judgement:
    """Test after test, until the score of one is below `stop_below`. SandboxBroken: no verdict could be had."""
    limits = submission.limits
    if submission.language == "cpp" or submission.compile:
        limits = replace(limits, memory=max(limits.memory, _COMPILE.memory))
    checker = _Checker(submission.checker, submission.function)
    with open_sandbox(limits, allow_unsafe=submission.unsafe) as box, checker:
        failure = _prepare(box, submission)
        if failure is not None:
            return Judgement((), failure)
        scores: list[float] = []
        with closing(_outcomes(box, submission, tests)) as outcomes:
            for test, (ended, result) in zip(tests, outcomes, strict=True):
                fault = _fault(ended)
                score, fault = (0.0, fault) if fault else checker.score(test, ended, result)
                scores.append(score)
                failure = failure or fault
                if score < stop_below:
                    break
    return Judgement(tuple(scores), failure)


def _prepare(box: Sandbox, submission: Submission) -> str | None:
    """Compile. What is wrong with the program, else None."""
    if submission.language == "python" and not submission.run:
        ended = box.load(submission.source)
        return None if ended.returncode == 0 else f"does not compile: {_said(ended)}"
    for name, content in (*submission.files, (submission.file_name, submission.source)):
        try:
            box.write(name, content.encode(errors="replace"))
        except OSError as error:
            raise SandboxBroken(f"{name} cannot be written: {error.strerror}") from None
    argv = ["sh", "-c", submission.compile] if submission.compile else [*_GXX, submission.file_name]
    if submission.language == "python" and not submission.compile:
        return None
    ended = box.run(argv, seconds=_COMPILE.seconds)
    if ended.returncode == 127:
        raise SandboxBroken("C++ answers need g++ on this machine (apt-get install g++).")
    return None if ended.returncode == 0 else f"does not compile: {_said(ended)}"


def _outcomes(box: Sandbox, submission: Submission, tests: Sequence[Case]) -> Generator[tuple[Finished, bytes]]:
    if submission.language == "python" and not submission.run:
        cases = [(test.stdin.encode(errors="replace"), test.arguments) for test in tests]
        yield from box.tests(cases, function=submission.function)
        return
    argv = ["sh", "-c", submission.run] if submission.run else ["./answer"]
    for test in tests:
        yield box.run(argv, stdin=test.stdin.encode(errors="replace")), b""


def _fault(ended: Finished) -> str | None:
    if ended.killed is not None:
        return {"time": "over the time limit", "memory": "over the memory limit"}.get(ended.killed, "too many files")
    if ended.returncode != 0:
        return f"ends with status {ended.returncode}: {_said(ended)}"
    return "writes too much" if ended.clipped else None


def _said(ended: Finished) -> str:
    """The line of stderr that tells the error: the last that has the word, or the last."""
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or lines or ["without a word"])[-1][:300]


class _Checker:
    """Scores outputs. The sandbox of a checker that the row brings is opened when it is first needed."""

    def __init__(self, checker: str, function: str | None):
        self._name, self._function = checker, function
        self._box: Sandbox | None = None

    def __enter__(self) -> "_Checker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._box is not None:
            self._box.close()

    def score(self, test: Case, ended: Finished, result: bytes) -> tuple[float, str | None]:
        """The score, and what is wrong where it is below 1."""
        if self._function is not None:
            try:
                value = read_result(result)
            except ValueError as error:
                return 0.0, str(error)
            return (1.0, None) if same_values(value, test.answer) else (0.0, "a wrong result")
        output = ended.stdout.decode(errors="replace")
        if self._name in COMPARISONS:
            return (1.0, None) if COMPARISONS[self._name](output, test.answer) else (0.0, "a wrong output")
        score = self._ask(test, output)
        if score is None:
            if self._ask(test, test.answer) is None:
                raise SandboxBroken("the checker fails on the expected answer as well")
            return 0.0, "an output that the checker cannot read"
        return score, None if score == 1.0 else "a wrong output"

    def _ask(self, test: Case, output: str) -> float | None:
        """What the row's own checker says; None where it fails."""
        if self._box is None:
            self._box = open_sandbox(Limits(seconds=_CHECK_SECONDS))
            if self._box.load(self._name).returncode != 0:
                raise SandboxBroken("the checker is neither tokens, lines, unordered nor a Python program")
        ((ended, result),) = self._box.tests([(b"", (test.stdin, output, test.answer))], function="check")
        try:
            score = float(read_result(result)) if ended.killed is None and ended.returncode == 0 else None
        except (ValueError, TypeError):
            return None
        return None if score is None or not 0.0 <= score <= 1.0 else score
