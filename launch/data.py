"""Checks files of rows, cleans them, measures how hard they are, and prepares them as TFDS data sets.

python -m launch.data validate rows.jsonl
python -m launch.data decontaminate --input rows.jsonl --against benchmark.jsonl --output clean.jsonl
python -m launch.data profile CHECKPOINT --input rows.jsonl --output profiled.jsonl
python -m launch.data prepare --input rows.jsonl --output data/rows

Rows are read from a .jsonl or .parquet file, a folder of such files or of Harbor tasks, or hf:NAME or hf:NAME:CONFIG,
a data set of the Hugging Face hub, which is streamed.
"""

import argparse
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import track

from cascade_jax.data import hub, sources, tfds_builder
from cascade_jax.data.decontamination import Benchmark
from cascade_jax.data.problems import with_problems
from cascade_jax.data.rows import RowError, UngradableRow, to_record
from cascade_jax.types import Row


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where all went well, 2 for a user's mistake (bad rows are one)."""
    given = _parser().parse_args(arguments)
    try:
        return given.run(given)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m launch.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("--split", default="train", help="which split of a data set of the hub to read (train)")
        return made

    validate = command("validate", _validate, "check every row and print counts per kind and per fault")
    validate.add_argument("file", help="where the rows are")
    validate.add_argument("--problems", default="", help="the side file in which a file's contest rows find their own")
    clean = command("decontaminate", _decontaminate, "leave out rows that a benchmark has seen")
    clean.add_argument("--input", required=True, help="where the rows are")
    clean.add_argument("--against", required=True, nargs="+", help="files with the benchmarks' rows")
    clean.add_argument("--n", type=int, default=9, help="words in a row that count as seen (9; also usual: 13, 14)")
    clean.add_argument("--output", required=True, help="the .jsonl file to make")
    _profile_arguments(command("profile", _profile, "write the pass rate that a checkpoint has on every row"))
    prepare = command("prepare", _prepare, "write the good rows as a TFDS data set of ArrayRecord files")
    prepare.add_argument("--input", required=True, help="where the rows are")
    prepare.add_argument("--output", required=True, help="the directory to make; its split has the name of --split")
    return parser


def _profile_arguments(profile: argparse.ArgumentParser) -> None:
    profile.add_argument("checkpoint", type=Path, help="a Hugging Face folder, or a checkpoint of a run")
    profile.add_argument("--input", required=True, help="where the rows are")
    profile.add_argument("--output", required=True, help="the .jsonl file to make; the same command goes on with it")
    profile.add_argument("--problems", default="", help="the side file in which a file's contest rows find their own")
    profile.add_argument("--samples", type=int, default=8, help="answers to each row (8)")
    profile.add_argument("--temperature", type=float, default=1.0, help="(1)")
    profile.add_argument("--top_p", type=float, default=1.0, help="keep the likeliest tokens of this mass (1)")
    profile.add_argument("--max_tokens", type=int, default=1024, help="of one answer (1024)")
    profile.add_argument("--max_prompt", type=int, default=4096, help="tokens; longer rows get no pass rate (4096)")
    profile.add_argument("--thinking", action="store_true", help="let the model think before it answers")
    profile.add_argument("--judge", default="", help="an OpenAI-compatible judge for rows that need one")
    profile.add_argument("--judge_model", default="", help="its name there")
    profile.add_argument("--batch", type=int, default=64, help="rows at a time; each batch is saved (64)")
    profile.add_argument("--seed", type=int, default=0)


class _Tally:
    """Counts what passes through `good`. Faults that differ in a name or a number alone count as one."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.first: dict[str, RowError] = {}

    def good(self, rows: Iterable[Row | RowError], total: int | None) -> Iterator[Row]:
        console = Console(stderr=True)
        hidden = not console.is_terminal
        for row in track(rows, "rows", total, console=console, transient=True, disable=hidden):
            if isinstance(row, RowError):
                fault = re.sub(r"'[^']*'|\d+", "", row.reason)
                self.faults[fault] += 1
                self.first.setdefault(fault, row)
            else:
                self.kinds[row.kind] += 1
                yield row

    def bad(self, *, left_out: bool = False) -> int:
        """How many rows have a fault; with `left_out`, how many no answer can be graded by, which is none."""
        return sum(
            count for fault, count in self.faults.items() if isinstance(self.first[fault], UngradableRow) == left_out
        )

    def show(self) -> None:
        for kind, count in sorted(self.kinds.items()):
            print(f"{count:8}  {kind}")
        for fault, count in self.faults.most_common():
            row = self.first[fault]
            what = "left out" if isinstance(row, UngradableRow) else "bad"
            print(f"{count:8}  {what}: {row.reason} (first at {row.where})")


def _rows(address: str, split: str, problems: str = "") -> tuple[Iterator[Row | RowError], int | None]:
    """The rows in order, each checked when it is asked for, and how many there are where that is known."""
    if address.startswith(hub.PREFIX):
        if problems:
            raise ValueError(f"--problems goes with rows in files, not with {address}; write them to one first.")
        return hub.scan(address, split=split), None
    rows = sources.open_rows(address)
    return sources.scan(with_problems(rows, problems) if problems else rows), len(rows)


def _validate(given: argparse.Namespace) -> int:
    tally = _Tally()
    for _ in tally.good(*_rows(given.file, given.split, given.problems)):
        pass
    tally.show()
    return 2 if tally.bad() else 0


def _prepare(given: argparse.Namespace) -> int:
    tally = _Tally()
    try:
        count = tfds_builder.write(tally.good(*_rows(given.input, given.split)), given.output, split=given.split)
    finally:
        tally.show()
    print(f"{given.output}: {count} rows written, {sum(tally.faults.values())} bad ones left out.")
    return 0


def _decontaminate(given: argparse.Namespace) -> int:
    records = [record for path in given.against for record in _benchmark(path)]
    benchmark, tally = Benchmark.of(records, given.n), _Tally()
    seen: Counter[str] = Counter()
    with _replaced(given.output) as file:
        for row in tally.good(*_rows(given.input, given.split)):
            if fault := benchmark.fault(row):
                seen[fault] += 1
            else:
                file.write(json.dumps(to_record(row), ensure_ascii=False) + "\n")
    tally.show()
    for fault, count in seen.most_common():
        print(f"{count:8}  seen: {fault}")
    kept = sum(tally.kinds.values()) - sum(seen.values())
    left_out = f"{sum(seen.values())} seen ones and {sum(tally.faults.values())} bad ones left out"
    print(f"{given.output}: {kept} rows written, {left_out}.")
    return 0


def _benchmark(path: str) -> Iterator[Row | Mapping[str, Any]]:
    """Its rows, or the records as they are where they are no rows: a prompt is enough here."""
    rows = sources.open_rows(path)
    for i in range(len(rows)):
        try:
            yield rows[i]
        except RowError:
            yield rows.record(i)


@contextlib.contextmanager
def _replaced(path: str) -> Iterator[TextIO]:
    """A file to write that takes its place when it is whole."""
    fresh = Path(f"{path}.incomplete")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            yield file
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _profile(given: argparse.Namespace) -> int:
    from launch import profile  # which loads a model

    tally = _Tally()
    try:
        count = profile.run(given, tally.good(*_rows(given.input, given.split, given.problems)))
    except KeyboardInterrupt:
        print(f"\nStopped after what {given.output}.incomplete holds; the same command goes on from there.")
        return 0
    finally:
        tally.show()
    print(f"{given.output}: {count} rows profiled, {sum(tally.faults.values())} bad ones left out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
