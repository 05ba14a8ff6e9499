"""The TPU compiler's final instruction schedule of a kernel, read without a TPU.

    python -m pallas_kernels.schedule v5p:1x1x1 MODULE:CASE ... [--record FILE]

A case is a function of one argument, `array(shape, dtype)`, that returns what to compile and its arguments:

    def forward(array):
        return functools.partial(attention, scale=1.0), (array((1, 4096, 32, 128), jnp.bfloat16), ...)

`compile_cases(topology, cases)` compiles each in a fresh process, because libtpu reads its flags once, and returns the
memory that the program takes and the `Schedule` of each Pallas kernel by the name given to pallas_call, which must end
in "_kernel" to be found. A program that does not compile raises RuntimeError with the compiler's words. `--record`
writes the result as JSON; `longer` compares with it, for a test that fails when a schedule gets longer.

A schedule is a static count of bundles (very long instruction words): the body of a loop counts once, and waiting for
memory is not in it. It shows which unit limits a kernel, and whether a change made it longer, the same on any host.
The flags are not documented: a tool for tests, not for training.
"""

import argparse
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

TOPOLOGIES = {"v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1", "tpu7x": "tpu7x:1x1x1"}  # the smallest of each

WINDOW = 512  # bundles in a row: a stretch as long as the body of a hot loop
_UTILIZATION = "final_hlo-static-per-bundle-utilization"
_FLAGS = f"--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={_UTILIZATION}.*"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Of one kernel. `matrix`: share of the matrix unit's issue slots that are used, over the whole kernel."""

    bundles: int
    matrix: float
    hot: float  # the same, from the first bundle with a matrix operation to the last: the body of the hot loop
    busiest: float  # and in the WINDOW consecutive bundles where it is largest
    spills: int  # vector registers stored because there were too few
    fills: int  # and loaded again
    slots: dict[str, float]  # share of used slots of every unit that is used


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Of one case: bytes that the program takes beside its arguments and results, and its kernels."""

    scratch: int
    kernels: dict[str, Schedule]


def compile_cases(topology: str, cases: Sequence[str]) -> dict[str, Compiled]:
    """What libtpu makes of each "module:function" for the first chip of a topology such as "v5p:1x1x1"."""
    with tempfile.TemporaryDirectory() as folder:
        described = {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} {_FLAGS}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        child = subprocess.run(
            [sys.executable, "-m", "pallas_kernels.schedule", topology, *cases, "--dumps", folder],
            env=os.environ | described,
            capture_output=True,
            text=True,
            check=False,
        )
    if child.returncode != 0:
        raise RuntimeError(f"{', '.join(cases)} for {topology}: {child.stderr[-3000:]}")
    found = json.loads(child.stdout.splitlines()[-1])
    return {
        case: Compiled(of["scratch"], {name: Schedule(**kernel) for name, kernel in of["kernels"].items()})
        for case, of in found.items()
    }


def record(path: Path, topology: str, cases: Sequence[str]) -> None:
    """Writes what `compile_cases` finds, and the compiler it is true of."""
    found = {case: dataclasses.asdict(of) for case, of in compile_cases(topology, cases).items()}
    known = json.loads(path.read_text()) if path.exists() else {}
    known["libtpu"] = metadata.version("libtpu")
    known[topology] = known.get(topology, {}) | found
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def longer(path: Path, topology: str, found: dict[str, Compiled]) -> list[str]:
    """A sentence for each kernel with more bundles or spills than `record` wrote, or that it did not write."""
    known = json.loads(path.read_text())[topology]
    sentences = []
    for case, compiled in found.items():
        for name, now in compiled.kernels.items():
            before = known.get(case, {}).get("kernels", {}).get(name, {"bundles": 0, "spills": 0})
            sentences += [
                f"{case} {name} on {topology}: {before[what]} {what} recorded, {getattr(now, what)} now"
                for what in ("bundles", "spills")
                if getattr(now, what) > before[what]
            ]
    return sentences


def read(text: str) -> Schedule:
    """The schedule in one of libtpu's per-bundle utilization files."""
    lines = text.splitlines()
    units = [unit.strip() for unit in lines[1].split(",")]
    capacity = dict(zip(units, map(int, lines[2].split()), strict=True))
    rows = [line.split() for line in lines[4:] if re.fullmatch(r"[\d ]+", line.strip())]
    used = {unit: [int(row[place]) for row in rows] for place, unit in enumerate(units)}
    unit = "MATMUL" if "MATMUL" in used else "MXU"  # older libtpus have one column for all that the matrix unit does
    matrix = used[unit]
    places = [place for place, n in enumerate(matrix) if n] or [0]
    window = min(WINDOW, len(matrix))
    total = most = sum(matrix[:window])
    for leaves, enters in zip(matrix, matrix[window:], strict=False):
        total += enters - leaves
        most = max(most, total)
    return Schedule(
        bundles=len(rows),
        matrix=round(sum(matrix) / (capacity[unit] * len(rows)), 3),
        hot=round(sum(matrix) / (capacity[unit] * (places[-1] - places[0] + 1)), 3),
        busiest=round(most / (capacity[unit] * window), 3),
        spills=sum(used["VSTORE:SPILL"]),
        fills=sum(used["VLOAD:FILL"]),
        slots={name: round(sum(n) / (capacity[name] * len(rows)), 3) for name, n in used.items() if sum(n)},
    )


def _read_dumps(folder: Path) -> dict[str, Schedule]:
    """The schedules of the Pallas kernels, which are the only names with a known ending; empties the folder."""
    kernels = {}
    for path in sorted(folder.glob(f"*{_UTILIZATION}*")):
        name = re.fullmatch(
            rf"\d+-(?:(?:jvp|transpose|vmap)_)*(\w+_kernel)_*(\.\d+)?-\d+-{_UTILIZATION}\.txt", path.name
        )
        if name is not None:
            kernels[f"{name[1]}{name[2] or ''}"] = read(path.read_text())
    for path in folder.iterdir():
        path.unlink()
    return kernels


def _compile(topology: str, case: str, folder: Path) -> dict[str, object]:
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from pallas_kernels.dispatch import compiling_for

    # The chips of the smallest slice are all of its one host's; libtpu would think of a host as it is mostly built.
    chips = [int(side) for side in topology.partition(":")[2].split("x")]
    device = topologies.get_topology_desc(topology, "tpu", chips_per_host_bounds=(*chips, 1, 1)[:3]).devices[0]

    def array(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    module, function = case.split(":")
    make: Callable = getattr(importlib.import_module(module), function)
    with compiling_for("tpu", device.device_kind):
        run, arguments = make(array)
        compiled = jax.jit(run).lower(*arguments).compile()
    scratch = compiled.memory_analysis().temp_size_in_bytes
    kernels = {name: dataclasses.asdict(schedule) for name, schedule in _read_dumps(folder).items()}
    return {"scratch": scratch, "kernels": kernels}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.schedule", description=__doc__.splitlines()[0])
    parser.add_argument("topology", help="such as v5p:1x1x1")
    parser.add_argument("cases", nargs="+", metavar="MODULE:CASE")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what is found to this JSON")
    parser.add_argument("--dumps", type=Path, help=argparse.SUPPRESS)  # the child of compile_cases
    options = parser.parse_args()
    if options.dumps is not None:
        found = {case: _compile(options.topology, case, options.dumps) for case in options.cases}
        print(json.dumps(found))
    elif options.record is not None:
        record(options.record, options.topology, options.cases)
    else:
        for case, compiled in compile_cases(options.topology, options.cases).items():
            print(f"{case}: {compiled.scratch / 2**20:.2f} MiB of scratch")
            for name, schedule in compiled.kernels.items():
                print(f"  {name}: {schedule}")


if __name__ == "__main__":
    main()
