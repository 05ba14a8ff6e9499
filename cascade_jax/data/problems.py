"""The side file of contest rows: problems with their graders, subtasks and tests, which many rows share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_jax.data.kinds import check_problem
from cascade_jax.data.kinds.columns import parsed
from cascade_jax.types import Row

Problems = Mapping[tuple[str, str], Mapping[str, Any]]  # (competition_id, problem_id) -> problem


def read_problems(path: str | Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(competition_id, problem_id) -> a problem as `kinds.check_problem` gives it.

    The file is JSON, {competition: {problem: ...}} or a list, or JSON lines; in the last two a problem names itself by
    competition_id and problem_id. ValueError names the file and the problem at fault.
    """
    text = Path(path).read_text(encoding="utf-8")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    several = all(line[0] == "{" and line[-1] == "}" for line in lines)
    found = {}
    for place, problem in _problems([parsed(line, str(path)) for line in (lines if several else [text])]):
        competition = str(problem.get("competition_id", place[0] if place else ""))
        name = str(problem.get("problem_id", place[-1] if place else ""))
        try:
            found[competition, name] = check_problem(problem)
        except ValueError as error:
            raise ValueError(f"{path}: problem {name!r} of {competition!r}: {error}.") from None
    if not found:
        raise ValueError(f"{path} holds no problems; each needs subtasks and all_tests.")
    return found


def problem_of(row: Row, problems: Problems) -> Mapping[str, Any]:
    """The row's problem, its own or that of the side file. ValueError where there is none, or it lacks the subtask."""
    fields = row.fields
    key = (fields["competition_id"], fields["problem_id"])
    problem = fields.get("problem") or problems.get(key)
    if problem is None:
        raise ValueError(f"the problem {key[1]!r} of {key[0]!r} is not in the side file")
    if fields["subtask"] not in problem["subtasks"]:
        raise ValueError(f"the problem {key[1]!r} has no subtask {fields['subtask']!r}")
    return problem


def _problems(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every problem in the nested value, with the keys that lead to it."""
    if isinstance(value, list):
        for item in value:
            yield from _problems(item, place)
    elif isinstance(value, Mapping):
        if {"all_tests", "subtasks"} & set(value):
            yield place, value
        else:
            for key, item in value.items():
                yield from _problems(item, (*place, key))
