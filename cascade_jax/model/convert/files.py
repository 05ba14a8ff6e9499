"""The safetensors format: what the files of a folder hold, read block by block, and files written tensor by tensor.

A file is 8 bytes with the length of a JSON header, the header (name -> dtype, shape, data_offsets), then the data.
Own code in place of the `safetensors` package because reading must not map whole files into memory, writing must not
gather a whole shard first, and faults must be told by file and tensor.
"""

import json
import math
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
    place = _read_index(index) if index.exists() else None
    files = sorted(folder.glob("*.safetensors") if place is None else {folder / file for file in place.values()})
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


def _read_index(index: Path) -> dict[str, str]:
    try:
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index.name} is no index of safetensors files ({error}); fetch it again.") from None


def read_header(file: Path) -> dict[str, Stored]:
    """name -> where it lies. CheckpointError names the file, and the tensors that are cut off or contradict it."""
    if not file.exists():
        raise CheckpointError(f"{file.name} is missing")
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            entries = json.loads(stream.read(length)) if 0 < length <= size else None
        entries.pop("__metadata__", None)
        begin = 8 + length
        found, faults = {}, []
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            stored = Stored(file, name, entry["dtype"], tuple(entry["shape"]), begin + first)
            found[name] = stored
            known = entry["dtype"] in DTYPES
            if begin + last > size:
                faults.append(f"{name} is cut off")
            elif first < 0 or last < first or (known and last - first != stored.bytes):
                faults.append(f"{name} has {last - first} bytes, which do not fit {entry['dtype']} {entry['shape']}")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file.name} ({size} bytes) is no whole safetensors file") from None
    if faults:
        raise CheckpointError(f"{file.name} ({size} bytes) is damaged: {', '.join(faults)}")
    return found


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
