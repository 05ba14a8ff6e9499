"""The collectives of a program, counted and sized, out of what JAX lowered: text that every compiler starts from."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "ragged_all_to_all", "collective_permute")
BYTES = {"i1": 1, "i8": 1, "ui8": 1, "bf16": 2, "f16": 2, "f32": 4, "i32": 4, "ui32": 4, "f64": 8, "i64": 8, "ui64": 8}


@dataclass(frozen=True)
class Collectives:
    """All of one kind: how often they stand in the program, and bytes of the largest result and of all results.

    A loop's body counts once.
    """

    count: int
    largest: int
    total: int


def ledger(text: str) -> dict[str, Collectives]:
    """kind -> what the StableHLO text has of it."""
    sizes: dict[str, list[int]] = {kind: [] for kind in KINDS}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = re.search(r"stablehlo\.(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute)\b", line)
        kind = found[1] if found else "ragged_all_to_all" if "@ragged_all_to_all" in line else None
        if kind is not None and not _alone(line):
            sizes[kind].append(sum(_result_sizes(_signature(lines[number:]))))
    return {kind: Collectives(len(found), max(found), sum(found)) for kind, found in sizes.items() if found}


def _alone(line: str) -> bool:
    """Whether every device is a group of its own, as along axes of size 1: nothing is moved."""
    groups = re.search(r"replica_groups = dense<.*?> : tensor<(\d+)x(\d+)xi64>", line)
    return groups is not None and groups[2] == "1"


def _signature(lines: Iterable[str]) -> str:
    """The first `: (...) -> ...` from here on; an op with a region has it at the region's end."""
    depth = 0
    for line in lines:
        depth += line.count("({") - line.count("})")
        if depth <= 0 and "->" in line:
            return line
    return ""


def _result_sizes(signature: str) -> list[int]:
    sizes = []
    for shape in re.findall(r"tensor<([^>]*)>", signature.rpartition("->")[2]):
        *dims, dtype = shape.split("x")
        size = BYTES.get(dtype, 4)
        for dim in dims:
            size *= int(dim)
        sizes.append(size)
    return sizes
