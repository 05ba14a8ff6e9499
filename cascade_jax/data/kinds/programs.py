"""Columns of the kinds that are answered by a program: unit tests of any problem, subtasks of a contest's."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.data.kinds.columns import NoSignal, choice, number, parsed, text, texts, texts_by_name

COLUMNS = {
    "code": ("unit_tests", "language", "checker", "time_limit", "question"),
    "competitive": (
        "competition_id",
        "problem_id",
        "subtask",
        "subtask_score",
        "language",
        "time_limit",
        "problem",
        "question",
    ),
}
LANGUAGES = ("python", "cpp")


def _check_code(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    tests = parsed(fields.get("unit_tests"), "unit_tests")
    if not isinstance(tests, Mapping):
        raise ValueError("unit_tests must be an object with inputs, outputs and fn_name")
    inputs, outputs = texts(tests.get("inputs"), "unit_tests.inputs"), texts(tests.get("outputs"), "unit_tests.outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"unit_tests has {len(inputs)} inputs and {len(outputs)} outputs; each test needs both")
    if not inputs:
        raise NoSignal("unit_tests is empty, so no program can be told from another")
    name = tests.get("fn_name") or None
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"unit_tests.fn_name is {name!r}; it must be the name of a function, or null for stdin")
    return {
        "unit_tests": {**tests, "inputs": inputs, "outputs": outputs, "fn_name": name},
        **(choice(fields, "language", LANGUAGES) if "language" in fields else {}),
        **text(fields, "checker"),
        **text(fields, "question"),
        **number(fields, "time_limit"),
    }


def _check_competitive(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    found = {
        **_identity(fields),
        **text(fields, "question"),
        **number(fields, "subtask_score"),
        **choice({"language": "cpp", **fields}, "language", LANGUAGES),
        **number(fields, "time_limit"),
    }
    if "problem" in fields:
        found["problem"] = check_problem(parsed(fields["problem"], "problem"))
        if found["subtask"] not in found["problem"]["subtasks"]:
            known = ", ".join(found["problem"]["subtasks"])
            raise ValueError(f"subtask is {found['subtask']!r}; the problem has {known}")
    return found


def _identity(fields: Mapping[str, Any]) -> dict[str, str]:
    """Which subtask of which problem of which contest; numbers are taken as texts."""
    found = {name: fields.get(name) for name in ("competition_id", "problem_id", "subtask")}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise ValueError(f"{name} is {value!r}; it must be a text or a number")
    return {name: str(value) for name, value in found.items()}


def check_problem(problem: Any) -> dict[str, Any]:
    """A problem with its tests, as a side file or the column `problem` holds it, in canonical form.

    compile, run: shell scripts ("": the language's own way). grader_files: {name: text}. subtasks: {name:
    {aggregation min or sum, score, score_precision, test_names}}. all_tests: {name: {input, output, group}}.
    """
    if not isinstance(problem, Mapping):
        raise ValueError("a problem must be an object with subtasks and all_tests")
    tests, subtasks = problem.get("all_tests"), problem.get("subtasks")
    if not isinstance(tests, Mapping) or not tests:
        raise NoSignal("all_tests is empty, so no program can be told from another")
    for name, test in tests.items():
        if not isinstance(test, Mapping) or not all(isinstance(test.get(key), str) for key in ("input", "output")):
            raise ValueError(f"all_tests[{name!r}] must be an object with the texts input and output")
    if not isinstance(subtasks, Mapping) or not subtasks:
        raise ValueError("subtasks must be an object, by name, that is not empty")
    return {
        **problem,
        **{name: text(problem, name).get(name, "") for name in ("compile", "run")},
        "grader_files": texts_by_name(problem.get("grader_files"), "grader_files"),
        "subtasks": {name: _check_subtask(name, subtask, tests) for name, subtask in subtasks.items()},
        "all_tests": {name: dict(test) for name, test in tests.items()},
    }


def _check_subtask(name: str, subtask: Any, tests: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(subtask, Mapping):
        raise ValueError(f"subtasks[{name!r}] must be an object")
    names = texts(subtask.get("test_names"), f"subtasks[{name!r}].test_names")
    unknown = sorted(set(names) - set(tests))
    if not names or unknown:
        raise ValueError(f"subtasks[{name!r}].test_names must name tests of all_tests; it has {unknown or 'none'}")
    precision = subtask.get("score_precision", 2)
    if isinstance(precision, bool) or not isinstance(precision, int) or not 0 <= precision <= 10:
        raise ValueError(f"subtasks[{name!r}].score_precision is {precision!r}; it must be 0 to 10 digits")
    score = number(subtask, "score")
    if not score:
        raise ValueError(f"subtasks[{name!r}] has no score")
    aggregation = choice(subtask, "aggregation", ("min", "sum"))
    return {**subtask, **aggregation, **score, "score_precision": precision, "test_names": names}


CHECKS = {"code": _check_code, "competitive": _check_competitive}
