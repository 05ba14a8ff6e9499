"""The published figures of accelerators, and described ones to compile for where there are none."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.experimental import topologies

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One device as JAX counts them. Links: the sum of all one-way links of the fast network, bytes a second."""

    flops: float  # dense bfloat16, a second
    memory: int  # bytes that a program can use: what the compiler allows
    bandwidth: float  # of the memory, bytes a second
    links: float
    slow: float  # to another slice or host, bytes a second


CHIPS = {
    "v5e": Chip(197e12, int(15.75 * GIB), 0.819e12, 4 * 45e9, 3.1e9),
    "v5p": Chip(459e12, int(95.73 * GIB), 2.765e12, 6 * 90e9, 6.25e9),
    "v6e": Chip(918e12, int(31.24 * GIB), 1.64e12, 4 * 90e9, 6.25e9),
    "tpu7x": Chip(1153e12, int(94.74 * GIB), 3.69e12, 300e9, 6.25e9),  # a core, of which a chip has two
    "a100": Chip(312e12, int(0.93 * 80e9), 2.0e12, 300e9, 25e9),
    "h100": Chip(989e12, int(0.93 * 80e9), 3.35e12, 450e9, 50e9),
    "h200": Chip(989e12, int(0.93 * 141e9), 4.8e12, 450e9, 50e9),
}
# What the CUDA compiler asks about a Hopper chip; public facts of the H200.
HOPPER = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 151397597184 shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES } registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H200"
"""
LONE = {  # a compiler without its chip looks for none, and two of them may run at a time
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def described(kind: str, shape: Sequence[int], slices: int) -> list[jax.Device]:
    """Devices to compile for. ValueError where the compiler is not installed or knows no such machine."""
    gpu = kind in ("h100", "h200")
    if not gpu and kind == "a100":
        raise ValueError(
            "a100: there is no description to compile for; plan for h100 or h200, which are compiled alike."
        )
    for name, value in LONE.items():
        os.environ.setdefault(name, value)
    try:
        if gpu:
            # There is no chip to try variants on; XLA reads this when it starts.
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()
            count = shape[0] * slices
            hosts, each = max(1, count // 8), min(count, 8)
            grid = f"1 x {hosts} x {each}"
            return list(topologies.get_topology_desc(kind, "cuda", target_config=HOPPER, topology=grid).devices)
        name = f"{kind}:{'x'.join(map(str, shape))}"
        more = {"num_slices": slices} if slices > 1 else {}
        return list(topologies.get_topology_desc(name, "tpu", **more).devices)
    except Exception as error:
        extra, package = ("cuda", "the CUDA plugin of JAX") if gpu else ("tpu", "libtpu")
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{kind} cannot be compiled for here ({reason}); it takes {package}: pip install 'cascade-jax[{extra}]'."
        ) from error
