"""safetensors folders as bytes: written and read here without any code of ours, so that they can be spoilt at will."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

Stored = tuple[str, tuple[int, ...], bytes]  # dtype as safetensors names it, shape, raw bytes
Tensors = dict[str, Stored]


def write_file(path: Path, tensors: Mapping[str, Stored]) -> None:
    """The format: length of the header (8 bytes, little endian), JSON header, data."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def shard_name(number: int, shards: int) -> str:
    return f"model-{number:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored], *, shards: int = 1) -> Path:
    """Neighbours in `tensors` share a shard; more than one shard has an index, as Hugging Face writes it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    parts = np.array_split(np.array(list(tensors)), shards)
    for i, names in enumerate(parts, 1):
        write_file(folder / shard_name(i, shards), {str(name): tensors[name] for name in names})
    if shards > 1:
        places = {str(name): shard_name(i, shards) for i, names in enumerate(parts, 1) for name in names}
        index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_files(folder: Path) -> tuple[Tensors, dict[str, str]]:
    """Every tensor of the folder, and the name of the file that holds it."""
    found: Tensors = {}
    places = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, "np") as opened:
            assert opened.metadata() == {"format": "pt"}  # without it older versions of transformers read nothing
        for name, tensor in safetensors.deserialize(file.read_bytes()):
            assert name not in found, f"{name} is stored twice"
            places[name] = file.name
            found[name] = (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
    return found, places


def read_folder(folder: Path) -> Tensors:
    """Every tensor of a folder that has an index of its files, or a single one."""
    found, places = read_files(folder)
    index = folder / "model.safetensors.index.json"
    assert index.exists() or len(set(places.values())) == 1
    if index.exists():
        values = json.loads(index.read_text())
        assert values["weight_map"] == places
        assert values["metadata"]["total_size"] == sum(len(data) for _, _, data in found.values())
    return found


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())
