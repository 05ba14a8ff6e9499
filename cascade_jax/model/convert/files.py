"""The safetensors format: what the files of a folder hold, read block by block, and files written tensor by tensor.

A file is 8 bytes with the length of a JSON header, the header (name -> dtype, shape, data_offsets), then the data.
Own code in place of the `safetensors` package because reading must not map whole files into memory, writing must not
gather a whole shard first, and faults must be told by file and tensor.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from cascade_jax.model.convert.error import CheckpointError

INDEX = "model.safetensors.index.json"
DTYPES = {
    "BF16": np.dtype(jnp.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
POINTER = b"version https://git-lfs"  # how a file begins that git-lfs has put in the place of a large one
CODES = {dtype: code for code, dtype in DTYPES.items()}


class Stored(NamedTuple):
    """Where the bytes of a tensor lie; `source` is the name that it has there, `start` counts from the file's begin."""

    file: Path
    source: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def __str__(self) -> str:
        return f"{self.source} in {self.file.name}"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def part(self, start: int, *shape: int) -> "Stored":
        """The block of this shape that begins with entry `start` of the first dimension."""
        offset = start * math.prod(self.shape[1:]) * DTYPES[self.dtype].itemsize
        return self._replace(shape=shape, start=self.start + offset)

    def read(self, index: tuple[slice, ...] = ()) -> np.ndarray:
        """A copy of this block of the tensor. The file is mapped for the moment only, so no more than that is kept."""
        mapped = np.memmap(self.file, DTYPES[self.dtype], "r", self.start, self.shape)
        return np.array(mapped[index])


class Folder(NamedTuple):
    """What a folder's files hold by name, what is wrong with them, and the names that are theirs but not readable.

    unread is None where a file without an index could not be read: then nobody knows what it should hold.
    """

    tensors: dict[str, Stored]
    faults: list[str]
    unread: frozenset[str] | None


def read_folder(folder: Path) -> Folder:
    """Every tensor of a checkpoint's safetensors files. CheckpointError where there are none, or a useless index."""
    index = folder / INDEX
    place = _read_index(index) if index.is_file() else None
    files = _unlisted(folder) if place is None else sorted({folder / file for file in place.values()})
    if not files:
        others = sorted(file.name for file in folder.glob("*.bin"))
        held = f"it holds {', '.join(others)}; convert those to safetensors" if others else "fetch them again"
        raise CheckpointError(f"there is no .safetensors file ({held}).")
    found: dict[str, Stored] = {}
    faults, unread, known = [], set(), True
    for file in files:
        expected = [name for name, home in (place or {}).items() if home == file.name]
        try:
            header = read_header(file)
        except CheckpointError as error:
            told = not expected or any(name in str(error) for name in expected)
            faults.append(str(error) if told else f"{error}, which holds {', '.join(expected)}")
            unread.update(expected)
            known = known and place is not None
            continue
        absent = [name for name in expected if name not in header]
        if absent:
            faults.append(f"{file.name} lacks {', '.join(absent)}, which {INDEX} puts there")
            unread.update(absent)
        faults += [f"{header[name]} and {found[name]} have one name" for name in sorted(found.keys() & header.keys())]
        found |= header
    return Folder(found, faults, frozenset(unread) if known else None)


def _unlisted(folder: Path) -> list[Path]:
    """The files of a folder without an index: a single one, or else shards by their numbers, there or not, or all."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]  # what stands beside it are adapters, or the same weights by other names
    shards = {
        folder / f"{named[1]}-{number:05d}-of-{named[2]}.safetensors"
        for file in folder.glob("*.safetensors")
        if (named := re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.safetensors", file.name))
        for number in range(1, int(named[2]) + 1)
    }
    return sorted(shards or folder.glob("*.safetensors"))


def _read_index(index: Path) -> dict[str, str]:
    """name of a tensor -> name of its file, which lies beside the index."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        fault = "" if isinstance(places, dict) and places else "its weight_map names no files"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        fault = str(error)
    if fault:
        raise CheckpointError(f"{index.name} is no index of safetensors files ({fault}); fetch it again.")
    for name, file in places.items():
        # a name with a path in it would read what is not part of the checkpoint
        if not isinstance(file, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors", file):
            raise CheckpointError(
                f"{index.name} puts {name} into {file!r}, which is no file beside it; fetch it again."
            )
    return places


def read_header(file: Path) -> dict[str, Stored]:
    """name -> where it lies. CheckpointError names the file, and the tensors that are cut off or contradict it."""
    if not file.is_file():
        raise CheckpointError(f"{file.name} is missing")
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if start + stream.read(len(POINTER) - 8) == POINTER:
            raise CheckpointError(f"{file.name} only points to what git-lfs has not fetched yet (run `git lfs pull`)")
        stream.seek(8)
        length = int.from_bytes(start, "little")
        text = stream.read(length) if 0 < length <= size - 8 else b""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file.name} ({size} bytes) is no whole safetensors file")
    entries.pop("__metadata__", None)
    begin = 8 + length
    faults = [fault for name, entry in entries.items() if (fault := _misfit(name, entry, size - begin))]
    faults = faults or _untiled({name: entry["data_offsets"] for name, entry in entries.items()}, size - begin)
    if faults:
        raise CheckpointError(f"{file.name} ({size} bytes) is damaged: {', '.join(faults)}")
    return {
        name: Stored(file, name, entry["dtype"], tuple(entry["shape"]), begin + entry["data_offsets"][0])
        for name, entry in entries.items()
    }


def _misfit(name: str, entry: Any, size: int) -> str:
    """What is wrong with a tensor's entry in the header, empty if nothing is. size: bytes of the file's data."""
    keys = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = keys.get("dtype"), keys.get("shape"), keys.get("data_offsets")
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        return f"{name} has no dtype, shape and data_offsets of whole numbers, 0 or more"
    first, last = offsets
    if last > size:
        return f"{name} is cut off"
    if last < first or (dtype in DTYPES and last - first != math.prod(shape) * DTYPES[dtype].itemsize):
        return f"{name} has {last - first} bytes, which do not fit {dtype} {shape}"
    return ""


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)  # no truth values


def _untiled(spans: Mapping[str, list[int]], size: int) -> list[str]:
    """Faults where tensors overlap or leave bytes of the data to nobody, which the format forbids."""
    faults, end, before = [], 0, "the header"
    for name, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if first < end:
            faults.append(f"{name} overlaps {before}")
        elif first > end:
            faults.append(f"{first - end} bytes between {before} and {name} belong to no tensor")
        end, before = max(end, last), name
    if end < size:
        faults.append(f"{size - end} bytes behind {before} belong to no tensor")
    return faults


def write_file(
    file: Path, entries: Mapping[str, tuple[str, tuple[int, ...]]], content: Callable[[str], Iterable[Any]]
) -> None:
    """entries: name -> (dtype, shape), in the order of the data; content(name): its bytes, in pieces."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    place = 0
    for name, (dtype, shape) in entries.items():
        size = math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in entries:
            for piece in content(name):
                stream.write(piece)
