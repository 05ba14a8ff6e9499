"""Checks files of rows, and prepares them as TFDS data sets.

python -m launch.data validate rows.jsonl
python -m launch.data prepare --input rows.jsonl --output data/rows
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import track

from cascade_jax.data import sources, tfds_builder
from cascade_jax.data.rows import RowError
from cascade_jax.types import Row


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where all went well, 2 for a user's mistake (bad rows are one)."""
    parser = argparse.ArgumentParser(prog="python -m launch.data", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    validate = commands.add_parser("validate", help="check every row and print counts per kind and per reason")
    validate.add_argument("file", help="a .jsonl or .parquet file")
    prepare = commands.add_parser("prepare", help="write the good rows as a TFDS data set of ArrayRecord files")
    prepare.add_argument("--input", required=True, help="a .jsonl or .parquet file")
    prepare.add_argument("--output", required=True, help="the directory to make")
    prepare.add_argument("--split", default="train", help="the name of its split (train)")
    given = parser.parse_args(arguments)
    try:
        if given.command == "validate":
            return _validate(given.file)
        return _prepare(given.input, given.output, given.split)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


class _Tally:
    """Counts what passes through `good`."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, str] = {}  # reason -> where it stood first

    def good(self, rows: sources.Rows) -> Iterator[Row]:
        console = Console(stderr=True)
        hidden = not console.is_terminal
        for row in track(sources.scan(rows), "rows", len(rows), console=console, transient=True, disable=hidden):
            if isinstance(row, RowError):
                self.reasons[row.reason] += 1
                self.first.setdefault(row.reason, row.where)
            else:
                self.kinds[row.kind] += 1
                yield row

    def show(self) -> None:
        for kind, count in sorted(self.kinds.items()):
            print(f"{count:8}  {kind}")
        for reason, count in self.reasons.most_common():
            print(f"{count:8}  bad: {reason} (first at {self.first[reason]})")


def _validate(path: str) -> int:
    tally = _Tally()
    for _ in tally.good(sources.open_rows(path)):
        pass
    tally.show()
    return 2 if tally.reasons else 0


def _prepare(path: str, directory: str, split: str) -> int:
    tally = _Tally()
    try:
        count = tfds_builder.write(tally.good(sources.open_rows(path)), directory, split=split)
    finally:
        tally.show()
    print(f"{directory}: {count} rows written, {sum(tally.reasons.values())} bad ones left out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
