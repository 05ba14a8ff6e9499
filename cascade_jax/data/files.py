"""Rows where they lie on disk: a .jsonl or .parquet file, a folder of such files, a folder of Harbor tasks."""

import bisect
import itertools
import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.data.rows import RowError, parse_row
from cascade_jax.types import Row


class Rows(Sequence[Row]):
    """`count` rows; `record(i)` reads the i-th one, `where(i)` says where it lies."""

    def __init__(self, count: int, record: Callable[[int], Mapping[str, Any]], where: Callable[[int], str]):
        self._count, self.record, self.where = count, record, where

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        index %= self._count
        return parse_row(self.record(index), where=self.where(index))

    def at(self, places: Sequence[int]) -> "Rows":
        """The rows at these places, in this order."""
        return Rows(len(places), lambda i: self.record(places[i]), lambda i: self.where(places[i]))


def open_rows(path: str, *, limit: int = 0) -> Rows:
    """The rows of a file or folder without checking them: indexing raises RowError where a row is bad."""
    if os.path.isdir(path):
        return folder(path)
    return jsonl(path, limit) if not path.endswith(".parquet") else parquet(path, limit)


def scan(rows: Rows) -> Iterator[Row | RowError]:
    """Each row in order, or the RowError that it gives."""
    for i in range(len(rows)):
        try:
            yield rows[i]
        except RowError as error:
            yield error


def jsonl(path: str, limit: int = 0) -> Rows:
    """Lines that are not blank, found once and parsed when asked for."""
    _require_file(path)
    starts, numbers, position = array("q"), array("q"), 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                starts.append(position)
                numbers.append(number)
            position += len(line)
            if limit and len(starts) == limit:
                break
    require_rows(len(starts), path)

    def where(index: int) -> str:
        return f"{path}:{numbers[index]}"

    def record(index: int) -> Mapping[str, Any]:
        with open(path, "rb") as file:
            file.seek(starts[index])
            line = file.readline()
        try:
            return json.loads(line)
        except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
            raise RowError(where(index), f"the line is not JSON: {error}") from None

    return Rows(len(starts), record, where)


def parquet(path: str, limit: int = 0) -> Rows:
    """The rows of a table, which is kept in memory."""
    import pyarrow
    import pyarrow.parquet

    _require_file(path)
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None
    table = table.slice(0, limit) if limit else table
    require_rows(table.num_rows, path)
    return Rows(
        table.num_rows,
        lambda i: from_arrow(table.slice(i, 1).to_pylist()[0]),
        lambda i: f"{path}:{i + 1}",
    )


def from_arrow(value: Any) -> Any:
    """As JSON has it: dates as texts, and no key that a struct has only since another row has it.

    Arrow writes null for those; a null in a list is a value.
    """
    if isinstance(value, dict):
        return {key: from_arrow(v) for key, v in value.items() if v is not None}
    if isinstance(value, list):
        return [from_arrow(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def folder(path: str) -> Rows:
    """All .jsonl and .parquet files of a folder by name; or the Harbor tasks in it (folders with a task.toml)."""
    tasks = sorted(file.parent for file in (*Path(path).glob("task.toml"), *Path(path).glob("*/task.toml")))
    if tasks:
        return Rows(
            len(tasks),
            lambda i: {"id": tasks[i].name, "kind": "terminal", "task_path": str(tasks[i])},
            lambda i: str(tasks[i]),
        )
    files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in (".jsonl", ".parquet"))
    if not files:
        raise ValueError(f"{path} holds neither .jsonl or .parquet files nor folders with a task.toml; name another.")
    return _joined([open_rows(file) for file in files])


def _joined(parts: Sequence[Rows]) -> Rows:
    ends = list(itertools.accumulate(len(part) for part in parts))

    def place(index: int) -> tuple[Rows, int]:
        number = bisect.bisect_right(ends, index)
        return parts[number], index - (ends[number] - len(parts[number]))

    def record(index: int) -> Mapping[str, Any]:
        part, inside = place(index)
        return part.record(inside)

    def where(index: int) -> str:
        part, inside = place(index)
        return part.where(inside)

    return Rows(ends[-1], record, where)


def _require_file(path: str) -> None:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}; check the path of this source.")


def require_rows(count: int, path: str) -> None:
    """ValueError where there are none."""
    if count == 0:
        raise ValueError(f"{path} holds no rows; a source needs at least one.")
