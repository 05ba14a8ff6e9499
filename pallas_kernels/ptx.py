"""What the CUDA compilers make of a kernel for a Hopper GPU, without a GPU: matrix instructions, registers, spills.

    python -m pallas_kernels.ptx MODULE:CASE ...

Cases are those of `pallas_kernels.schedule`. `compile_cases` compiles each in a fresh process for a described H200,
which takes the jax-cuda13-plugin, and gives the PTX of every Pallas kernel, whose name ends in "_kernel", to ptxas.
"""

import argparse
import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

# What the compiler asks about the chip; public facts of the H200.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 151397597184
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
_PROPERTIES = r"Function properties for (\w+_kernel)\w*\n.*?(\d+) bytes spill stores.*?\n.*?Used (\d+) registers"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Instructions for the matrix unit in its text: of a warp group (Hopper), of a warp (any); a thread's registers."""

    wgmma: int
    mma: int
    registers: int
    spilled: int  # bytes that a thread stores for want of registers


def compile_cases(cases: Sequence[str]) -> dict[str, dict[str, Kernel]]:
    """The kernels of each "module:function". RuntimeError with the compiler's words where one does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        described = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        child = subprocess.run(
            [sys.executable, "-m", "pallas_kernels.ptx", *cases, "--dumps", folder],
            env=os.environ | described,
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode != 0:
        raise RuntimeError(f"{', '.join(cases)} for an H200: {child.stderr[-3000:]}")
    found = json.loads(child.stdout.splitlines()[-1])
    return {case: {name: Kernel(**kernel) for name, kernel in of.items()} for case, of in found.items()}


def assembler() -> Path | None:
    """ptxas: the one on PATH, or that of the nvidia-cuda-nvcc package; None where there is neither."""
    found = [Path(folder) / "nvidia" / "cu13" / "bin" / "ptxas" for folder in sys.path if folder]
    on_path = shutil.which("ptxas")
    return Path(on_path) if on_path else next((path for path in found if path.exists()), None)


def read(path: Path) -> dict[str, Kernel]:
    """The kernels in a PTX file."""
    text = path.read_text()
    assembled = subprocess.run(
        [str(assembler()), "-v", "-arch=sm_90a", str(path), "-o", os.devnull],
        capture_output=True,
        text=True,
        check=True,
    )
    instructions = {"wgmma": text.count("wgmma.mma_async"), "mma": text.count("mma.sync")}
    return {
        name: Kernel(**instructions, registers=int(registers), spilled=int(spilled))
        for name, spilled, registers in re.findall(_PROPERTIES, assembled.stderr)
    }


def _compile(case: str, folder: Path) -> dict[str, dict[str, int]]:
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from pallas_kernels.dispatch import compiling_for

    described = topologies.get_topology_desc("h200", "cuda", target_config=H200, topology="1 x 1 x 1")
    sharding = SingleDeviceSharding(described.devices[0])

    def array(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    module, function = case.split(":")
    make: Callable = getattr(importlib.import_module(module), function)
    with compiling_for("gpu", "NVIDIA H200"):
        run, arguments = make(array)
        jax.jit(run).lower(*arguments).compile()
    kernels = {}
    for path in folder.iterdir():
        if path.suffix == ".ptx" and re.search(r"\.entry \w+_kernel", path.read_text()):
            kernels |= {name: dataclasses.asdict(kernel) for name, kernel in read(path).items()}
        path.unlink()
    return kernels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.ptx", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="MODULE:CASE")
    parser.add_argument("--dumps", type=Path, help=argparse.SUPPRESS)  # the child of compile_cases
    options = parser.parse_args()
    if options.dumps is not None:
        print(json.dumps({case: _compile(case, options.dumps) for case in options.cases}))
        return
    for case, kernels in compile_cases(options.cases).items():
        print(case, *(f"  {name}: {kernel}" for name, kernel in kernels.items()), sep="\n")


if __name__ == "__main__":
    main()
