"""What a benchmark leaves in its folder: settings.json, rows.jsonl, and samples.jsonl with a line for each sample.

A line stands for itself: what was drawn and with which seed and settings, how it was read back, how it was judged.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_jax.config import SamplingConfig, build, to_dict
from cascade_jax.types import Reply, Row, ToolCall, Verdict

Record = dict[str, Any]  # one line of samples.jsonl


@dataclass(frozen=True)
class Settings:
    """All that decides what is drawn. `weights`: a fingerprint. `batch`: samples decoded at a time."""

    benchmark: str
    checkpoint: str
    weights: str
    samples: int
    sampling: SamplingConfig
    thinking: bool
    seed: int
    rows: int  # the first so many, 0 for all
    batch: int
    longest_prompt: int


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a benchmark's folder. ValueError where another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by a live evaluation; wait for it, or give another --out.") from None
        yield


def begin(folder: Path, settings: Settings, rows: Sequence[Row]) -> list[Row]:
    """Write settings and rows, or check that those that are there are the same; the rows as they read back.

    ValueError where the folder belongs to other settings or rows, or two rows have one id.
    """
    file = folder / "settings.json"
    if file.exists():
        old, new = json.loads(file.read_text()), json.loads(json.dumps(to_dict(settings)))
        differing = [f"{key} {old.get(key)!r}, now {new[key]!r}" for key in new if old.get(key) != new[key]]
        if not differing and not _same_lines(folder / "rows.jsonl", _lines(rows)):
            differing = ["the rows themselves"]
        if differing:
            raise ValueError(
                f"{folder} holds samples of other settings ({'; '.join(differing)}); give another --out, or the same "
                "settings to go on."
            )
    else:  # the rows first: a folder with settings has both
        written_whole(folder / "rows.jsonl", _lines(rows))
        written_whole(file, [json.dumps(to_dict(settings), indent=1)])
    found = read_rows(folder)
    twice = [name for name, count in Counter(row.id for row in found).items() if count > 1]
    if twice:
        raise ValueError(f"{len(twice)} ids stand on several rows, {twice[0]!r} first; give each row an id of its own.")
    return found


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """One after the other: rows of a million tokens are made when they are asked for."""
    return (f"{json.dumps(dataclasses.asdict(row))}\n" for row in rows)


def _same_lines(file: Path, lines: Iterator[str]) -> bool:
    with file.open(encoding="utf-8") as opened:
        return all(one == other for one, other in itertools.zip_longest(opened, lines))


def read_settings(folder: Path) -> Settings:
    """FileNotFoundError where the folder is no benchmark's."""
    file = folder / "settings.json"
    if not file.exists():
        raise FileNotFoundError(f"{folder} holds no samples (no settings.json); give what an evaluation had as --out.")
    return build(Settings, json.loads(file.read_text()), str(file))


def read_rows(folder: Path) -> list[Row]:
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return [Row(**{**row, "messages": tuple(row["messages"]), "tools": tuple(row["tools"])}) for row in found]


def read_records(folder: Path) -> list[Record]:
    """The whole lines of samples.jsonl; a last one that a killed process did not finish is passed over.

    ValueError where another line is broken.
    """
    file = folder / "samples.jsonl"
    lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number == len(lines) - 1:
                break
            raise ValueError(
                f"{file}:{number} is not JSON; remove the folder, or that line and all after it."
            ) from None
    return records


def cut(folder: Path, count: int) -> None:
    """Keep the first `count` lines of samples.jsonl, whatever follows them."""
    file = folder / "samples.jsonl"
    whole = sum(len(line) + 1 for line in file.read_bytes().split(b"\n")[:count]) if file.exists() else 0
    if file.exists() and file.stat().st_size > whole:
        os.truncate(file, whole)


def append(folder: Path, records: Sequence[Record]) -> None:
    """Write lines that are on disk when this returns."""
    with (folder / "samples.jsonl").open("ab") as file:
        file.write("".join(f"{json.dumps(record)}\n" for record in records).encode())
        file.flush()
        os.fsync(file.fileno())


def written_whole(file: Path, parts: Iterable[str]) -> None:
    """All of it or what was there before."""
    fresh = file.with_name(f".{file.name}.incomplete")
    with fresh.open("w", encoding="utf-8") as opened:
        opened.writelines(parts)
    fresh.replace(file)


def reply_as_json(reply: Reply) -> Record:
    return {**dataclasses.asdict(reply), "tool_calls": [dataclasses.asdict(call) for call in reply.tool_calls]}


def reply_from_json(value: Mapping[str, Any]) -> Reply:
    calls = tuple(ToolCall(**call) for call in value["tool_calls"])
    return Reply(**{**value, "tool_calls": calls})


def verdict_as_json(verdict: Verdict) -> Record:
    """NaN, which JSON has not, as null: the reward where no verdict was had, and components alike."""
    info = json.loads(json.dumps(verdict.info, default=str))
    components = {name: _number(value) for name, value in verdict.components.items()}
    return {
        "reward": None if verdict.no_verdict is not None else _number(verdict.reward),
        "components": components,
        "info": info,
        "no_verdict": verdict.no_verdict,
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
