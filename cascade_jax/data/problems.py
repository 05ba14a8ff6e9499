"""The side file of contest rows: problems with their graders, subtasks and tests, which many rows share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_jax.data.files import Rows
from cascade_jax.data.kinds import check_problem
from cascade_jax.data.kinds.columns import parsed
from cascade_jax.data.rows import RowError

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


def with_problems(rows: Rows, path: str | Path) -> Rows:
    """The same rows, each contest row with its `problem`; reading one that is not in the file is a RowError."""
    problems = read_problems(path)
    return Rows(len(rows), lambda i: _joined(rows.record(i), problems, rows.where(i)), rows.where)


def _joined(record: Mapping[str, Any], problems: Problems, where: str) -> Mapping[str, Any]:
    names = {**(record.get("verifier_metadata") or {}), **record}
    if "competition_id" not in names or "problem" in names:
        return record
    key = str(names["competition_id"]), str(names.get("problem_id"))
    if key not in problems:
        raise RowError(where, f"the problem {key[1]!r} of {key[0]!r} is not in the side file")
    # Without an id of its own a row would be named by all of its tests.
    name = {"id": "-".join([*key, str(names.get("subtask"))])} if record.get("id", record.get("uuid")) is None else {}
    return {**record, **name, "problem": problems[key]}


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
