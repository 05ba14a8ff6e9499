"""Host memory of an import: a nemotron_h checkpoint of 4 GiB in 5 shards, read onto 8 devices of this machine's CPU.

python -m benchmarks.import_memory

Needs 5 GiB of disk and 10 GiB of memory (Linux), and takes about two minutes. The network has the widths of
Nemotron-3-Nano-30B-A3B with 64 of its 128 experts and 6 of its 52 layers. For each mesh:

    kept   bytes of all shards on all devices
    peak   the most that a fresh process held while it read the folder, less what one holds that only started JAX
    above  peak - kept; at most 1.6 GiB, or the exit code is 1 (on two cores in November 2026: 0.55 and 0.52 GiB)
"""

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from cascade_jax.mesh import make_mesh
from cascade_jax.model import presets
from cascade_jax.model.convert import config_to_hf, load_hf, tensor_shapes

SHARDS = 5
MESHES = ({"fsdp": 8}, {"fsdp": 2, "expert": 2, "tensor": 2})
GIB = 2**30
MOST_ABOVE = 1.6 * GIB


def main() -> int:
    """Writes, reads and prints; 1 where a mesh took more than it may."""
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder))
        print(f"{size / GIB:.2f} GiB in {SHARDS} shards\n\n{'mesh':28} {'kept':>6} {'peak':>6} {'above':>6}  GiB")
        above = [measure(Path(folder), mesh) for mesh in MESHES]
    return int(max(above) > MOST_ABOVE)


def write(folder: Path) -> int:
    """Finite bfloat16 numbers at random; the bytes of all tensors."""
    config = replace(presets.get("nemotron-3-nano-30b-a3b"), pattern="MEM*EM", experts=64)
    (folder / "config.json").write_text(json.dumps(config_to_hf(config, dtype="bfloat16")))
    shapes, rng = tensor_shapes(config), np.random.default_rng(0)
    total = sum(2 * int(np.prod(shape)) for shape in shapes.values())
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        if filled >= total / SHARDS * len(shards):
            shards.append([])
        shards[-1].append(name)
        filled += 2 * int(np.prod(shape))
    files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        save_file({name: numbers(rng, shapes[name]) for name in names}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits but the highest of the exponent: below 2, never infinite."""
    bits = np.frombuffer(rng.bytes(2 * int(np.prod(shape))), np.uint16) & 0xBFFF
    return bits.view(ml_dtypes.bfloat16).reshape(shape)


def measure(folder: Path, mesh: Mapping[str, int]) -> float:
    """One line of the table; the bytes that the import took above what it kept."""
    # A process of its own each time: the mark of the most that was held never falls.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as process:
        _, started = process.submit(held, None, mesh).result()
        kept, most = process.submit(held, folder, mesh).result()
    peak = most - started
    title = " ".join(f"{axis} {size}" for axis, size in mesh.items())
    print(f"{title:28} {kept / GIB:6.2f} {peak / GIB:6.2f} {(peak - kept) / GIB:6.2f}", flush=True)
    return peak - kept


def held(folder: Path | None, mesh: Mapping[str, int]) -> tuple[int, int]:
    """(bytes kept on all devices, most bytes of memory that this process has held), without an import for None."""
    devices = make_mesh(**mesh)
    jax.device_put(np.zeros(8), jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec())).block_until_ready()
    params = {} if folder is None else load_hf(folder, mesh=devices)[1]
    leaves = jax.block_until_ready(jax.tree.leaves(params))
    kept = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
    status = Path("/proc/self/status").read_text().split()
    return kept, int(status[status.index("VmHWM:") + 1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
