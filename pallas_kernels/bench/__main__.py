"""Values, times and scratch memory of every operation beside what else is installed, on the device that is there.

    python -m pallas_kernels.bench [--operations=grouped_matmul,ssd] [--json=FILE] [--markdown=FILE]

A CPU gets small shapes, an accelerator those of the 30B network. "times ours" is a way's median time divided by that of
ours: above 1 it is slower.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pallas_kernels.bench.cases import OPERATIONS, Case, every
from pallas_kernels.bench.clock import Measured, measure
from pallas_kernels.dispatch import target

ERROR = {"float32": 2e-5, "bfloat16": 3e-2}  # of the largest entry, between ours and another way


def rows_of(case: Case, *, repeats: int, budget: float) -> list[dict[str, Any]]:
    """One row of the table for every way. RuntimeError where two ways of the same disagree."""
    arguments = case.make()
    found, refused = measure(case.ways, arguments, repeats=repeats, budget=budget)
    if "ours" not in found:
        raise RuntimeError(f"{case.operation} {case.name}: {refused['ours']}")
    ours, rows = found["ours"], []
    for name, way in found.items():
        error = None if name in case.unchecked else _error(way, ours)
        allowed = ERROR[arguments[0].dtype.name]
        if error is not None and error > allowed:
            raise RuntimeError(f"{case.operation} {case.name}: {name} is {error:.1e} off ours, above {allowed:.0e}.")
        rows.append(
            {
                "operation": case.operation,
                "case": case.name,
                "way": name,
                "milliseconds": round(1e3 * way.median, 3),
                "fastest": round(1e3 * min(way.seconds), 3),
                "slowest": round(1e3 * max(way.seconds), 3),
                "turns": len(way.seconds),
                "times_ours": round(way.median / ours.median, 3),
                "gigaflops": round(case.flops / way.median / 1e9, 1),
                "scratch_mib": None if way.scratch is None else round(way.scratch / 2**20, 2),
                "error": error,
            }
        )
    return rows


def _error(way: Measured, ours: Measured) -> float:
    """The largest difference, relative to the largest entry of its array."""
    pairs = zip(way.result, ours.result, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def markdown(rows: list[dict[str, Any]], device: str) -> str:
    """The table as a page keeps it."""
    lines = [
        f"Measured on {device}.",
        "",
        "| operation | shape | way | ms (fastest to slowest) | times ours | GFLOP/s | scratch MiB | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        scratch = "-" if row["scratch_mib"] is None else f"{row['scratch_mib']:.1f}"
        lines.append(
            f"| {row['operation']} | {row['case']} | {row['way']} | {row['milliseconds']:.2f} ({row['fastest']:.2f} to "
            f"{row['slowest']:.2f}) | {row['times_ours']:.2f} | {row['gigaflops']:.1f} | {scratch} | {error} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--operations", default=",".join(OPERATIONS), help=f"some of {', '.join(OPERATIONS)}")
    parser.add_argument("--repeats", type=int, default=15, help="turns of every way")
    parser.add_argument(
        "--seconds", type=float, default=60, help="for one case, after which it makes do with its turns"
    )
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    options = parser.parse_args()
    asked = tuple(options.operations.split(","))
    unknown = sorted(set(asked) - set(OPERATIONS))
    if unknown:
        parser.error(f"no operation {', '.join(unknown)}; there are {', '.join(OPERATIONS)}")
    rows: list[dict[str, Any]] = []
    for case in every(asked):
        fresh = rows_of(case, repeats=options.repeats, budget=options.seconds)
        times = (f"{row['way']} {row['milliseconds']:.2f} ms (x{row['times_ours']:.2f})" for row in fresh)
        print(f"{case.operation} {case.name}: {', '.join(times)}", flush=True)
        rows += fresh
    device = f"{target().kind}, jax {jax.__version__}"
    print(f"\n{markdown(rows, device)}")
    if options.json is not None:
        options.json.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(markdown(rows, device), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
