"""What the name of a machine stands for: how many chips, on how many hosts, and what Google Cloud calls it.

    python3 -m launch.topology v5p:4x4x4 2xv6e:16x16 h200:16

KIND:SHAPE for a TPU slice, Nx before it for N slices that only the data-centre network joins, KIND:NUMBER for GPUs.
Standard library alone: a launcher runs where nothing is installed.
"""

import math
import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of chip. `rank`: of a slice's shape. Google's names count `counted` for a chip, JAX sees `devices`."""

    rank: int  # 0: GPUs, which come in hosts of up to 8
    gcp: str  # what precedes the number in Google's name of a slice or of a machine
    gke: str  # GKE's label for the accelerator
    counted: int = 1
    devices: int = 1
    one_host: tuple[tuple[int, ...], ...] = ()  # shapes that one host of as many chips holds
    runtime: str = ""  # what TPU VMs boot; empty: none are offered, GKE alone has them


BOARDS = ((1, 1), (2, 2), (2, 4))
KINDS = {
    "v5e": Kind(2, "v5litepod-", "tpu-v5-lite-podslice", one_host=BOARDS, runtime="v2-alpha-tpuv5-lite"),
    "v5p": Kind(3, "v5p-", "tpu-v5p-slice", counted=2, one_host=((1, 1, 1), (2, 2, 1)), runtime="v2-alpha-tpuv5"),
    "v6e": Kind(2, "v6e-", "tpu-v6e-slice", one_host=BOARDS, runtime="v2-alpha-tpuv6e"),
    "tpu7x": Kind(3, "tpu7x-", "tpu7x", counted=2, devices=2, one_host=((1, 1, 1), (2, 2, 1))),
    "a100": Kind(0, "a2-highgpu-", "nvidia-tesla-a100"),
    "h100": Kind(0, "a3-highgpu-", "nvidia-h100-80gb"),
    "h200": Kind(0, "a3-ultragpu-", "nvidia-h200-141gb"),
}
FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))  # all slices there are of v5e and v6e
KNOWN = (
    "known are v5e and v6e from 1x1 to 16x16 (v6e:16x16), v5p and tpu7x from 1x1x1 on (v5p:4x4x4), all with Nx before "
    "them for N slices (2xv5p:4x4x4), and a100, h100, h200 with 1, 2, 4 or a multiple of 8 (h200:16)"
)


@dataclass(frozen=True)
class Topology:
    """`shape`, `gcp_type` are those of one slice; `chips`, `hosts` and `devices` count all slices."""

    name: str
    kind: str
    shape: tuple[int, ...]
    slices: int
    chips: int
    hosts: int
    chips_per_host: int
    devices: int  # as JAX counts them: the product of the axes of a mesh
    gcp_type: str

    @property
    def is_tpu(self) -> bool:
        return KINDS[self.kind].rank > 0

    @property
    def hosts_per_slice(self) -> int:
        return self.hosts // self.slices


def topology(name: str) -> Topology:
    """The machine of that name, e.g. v5p:4x4x4, 2xv6e:16x16 or h200:16. ValueError says what is known."""
    found = re.fullmatch(r"(?:([1-9]\d{0,3})x)?([a-z]\w*?):(\d{1,5}(?:x\d{1,5})*)", name)
    if found is None or found[2] not in KINDS:
        raise ValueError(f"topology={name!r} is not known; {KNOWN}.")
    slices, kind, shape = int(found[1] or 1), found[2], tuple(int(part) for part in found[3].split("x"))
    facts = KINDS[kind]
    if not (_is_gpus(shape, found[1]) if facts.rank == 0 else _is_slice(shape, facts)):
        raise ValueError(f"topology={name!r}: there is no {kind} of that shape; {KNOWN}.")
    chips = math.prod(shape)
    if facts.rank == 0:
        per_host = min(chips, 8)
        gcp_type = f"{facts.gcp}{per_host}g"
    else:
        per_host = chips if shape in facts.one_host else 4
        gcp_type = f"{facts.gcp}{chips * facts.counted}"
    return Topology(
        name,
        kind,
        shape,
        slices,
        chips=slices * chips,
        hosts=slices * chips // per_host,
        chips_per_host=per_host,
        devices=slices * chips * facts.devices,
        gcp_type=gcp_type,
    )


def _is_gpus(shape: tuple[int, ...], slices: str | None) -> bool:
    return slices is None and len(shape) == 1 and (shape[0] in (1, 2, 4) or (shape[0] > 0 and shape[0] % 8 == 0))


def _is_slice(shape: tuple[int, ...], facts: Kind) -> bool:
    if facts.rank == 2:
        return shape in FLAT
    small = (*facts.one_host, (2, 2, 2), (2, 2, 4), (2, 4, 4))
    cubes = len(shape) == 3 and all(side > 0 and side % 4 == 0 for side in shape) and list(shape) == sorted(shape)
    return shape in small or cubes


def main(names: list[str]) -> int:
    """A line for each name: kind, slices, hosts, chips per host, JAX devices, Google's type, the TPU VM's runtime."""
    if not names or {"--help", "-h"} & set(names):
        print(__doc__ + "\nColumns: kind, slices, hosts, chips per host, devices, Google's type, runtime of TPU VMs.")
        return 0 if names else 2
    try:
        machines = [topology(name) for name in names]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for t in machines:
        print(t.kind, t.slices, t.hosts, t.chips_per_host, t.devices, t.gcp_type, KINDS[t.kind].runtime or "-")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
