"""Block sizes measured on the device that is there, written to tuned/*.json.

    python -m pallas_kernels.autotune [--operations=grouped_matmul,attention] [--folder=DIR]

One size at a time, from the filed ones on, over the workloads of `pallas_kernels.bench`; what does not compile or does
not fit is passed over. A faster size is kept where it wins by more than NOISE.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pallas_kernels import tuning
from pallas_kernels.bench.cases import OPERATIONS, Case, every
from pallas_kernels.bench.clock import measure

NOISE = 0.02  # of the time

_SIDES = (64, 128, 256, 512, 1024)
_TRITON = {"warps": (4, 8), "stages": (2, 3, 4)}
CANDIDATES: dict[str, dict[str, tuple[int, ...]]] = {
    "attention": {
        "queries": (64, 128, 256),
        "keys": (256, 512, 1024, 2048),
        "chunk": (128, 256, 512),
        "heads": (1, 2, 4),
    },
    "attention_gpu": {"queries": (64, 128), "keys": (32, 64, 128), **_TRITON},
    "grouped_matmul": {
        "tile": _SIDES,
        **dict.fromkeys(("columns", "columns_transposed"), (640, 768, 1024, 1408, 1920)),
        **dict.fromkeys(("inside", "gradient_inside"), (128, 256, 512)),
        **dict.fromkeys(("gradient_rows", "gradient_columns"), (512, 640, 896, 1024)),
    },
    "grouped_matmul_gpu": {
        **{"tile": (64, 128, 256), "columns": (64, 128, 256), "depth": (32, 64, 128)},
        **{"gradient_rows": (64, 128, 256), "gradient_columns": (64, 128, 256), "gradient_depth": (32, 64)},
        **_TRITON,
    },
    "token_logprob": {
        **{"rows": (256, 512, 1024), "columns": (512, 1024, 2048), "inside": (128, 256)},
        "part_logits": tuple(1 << n for n in range(20, 28)),
    },
    "token_logprob_gpu": {
        "rows": (64, 128),
        "columns": (64, 128, 256),
        "depth": (32, 64),
        "shares": (8, 16, 32),
        **_TRITON,
    },
}


def candidates(table: str) -> dict[str, tuple[int, ...]]:
    """What to try of a file's sizes: attention has one file for each of its kernels."""
    if table.startswith("attention"):
        return CANDIDATES["attention_gpu" if table.endswith("_gpu") else "attention"]
    return CANDIDATES[table]


def tune(case: Case, say: Callable[[str], None], folder: Path = tuning.FOLDER, *, repeats: int = 5) -> dict[str, Any]:
    """The best sizes of every table that the case asks, written down where they differ from the filed ones."""
    arguments = case.make()

    def seconds(sizes: dict[str, dict[str, int]]) -> tuple[float, tuning.Trial]:
        with tuning.trying(sizes) as trial:
            found, _ = measure({"ours": case.ways["ours"]}, arguments, repeats=repeats, budget=10)
        return (min(found["ours"].seconds) if found else float("inf")), trial

    best, trial = seconds({})
    if best == float("inf"):
        raise RuntimeError(f"{case.operation} {case.name} does not run with the sizes that are filed")
    asked, kept = dict(trial.asked), {table: {} for table, _, _ in trial.asked}
    for (table, _, _), filed in asked.items():
        for name, values in candidates(table).items():
            for value in values if name in filed else ():
                if value == (filed | kept[table])[name]:
                    continue
                trying = {**kept, table: kept[table] | {name: value}}
                time, _ = seconds(trying)
                if time < best * (1 - NOISE):
                    best, kept = time, trying
                    say(f"{case.operation} {case.name}: {table} {name}={value} takes {1e3 * time:.3f} ms")
    for table, dtype, dims in asked:
        if kept[table]:
            tuning.record(table, dtype, kept[table], folder, **dict(dims))
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.autotune", description=__doc__.splitlines()[0])
    parser.add_argument("--operations", default=",".join(OPERATIONS), help=f"some of {', '.join(OPERATIONS)}")
    parser.add_argument(
        "--folder", type=Path, default=tuning.FOLDER, help="the files to write (default: the package's)"
    )
    options = parser.parse_args()
    asked = tuple(options.operations.split(","))
    unknown = sorted(set(asked) - set(OPERATIONS))
    if unknown:
        parser.error(f"no operation {', '.join(unknown)}; there are {', '.join(OPERATIONS)}")
    for case in every(asked):
        found = {
            table: sizes
            for table, sizes in tune(case, lambda line: print(line, flush=True), options.folder).items()
            if sizes
        }
        print(f"{case.operation} {case.name}: {found or 'the filed sizes are the fastest'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
