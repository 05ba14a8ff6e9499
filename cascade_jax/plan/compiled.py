"""What the compiler says of a step: whether it fits, and the memory it takes. Kept by the program's hash."""

import dataclasses
import hashlib
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import jax

from cascade_jax.manifest import write_json
from cascade_jax.plan.ledger import Collectives, ledger


@dataclass(frozen=True)
class Compiled:
    """Bytes are of one device. peak: the most that is alive at a time. refused: the compiler's word, if it does."""

    program: str  # the hash of what was lowered, the compiler and the machine
    seconds: float
    arguments: int
    scratch: int
    peak: int
    collectives: dict[str, Collectives]
    refused: str = ""


def compiled(lowered: jax.stages.Lowered, machine: str, kept: Path | None) -> Compiled:
    """Compile it, or read what came out when this very program was compiled before."""
    text = lowered.as_text()
    program = hashlib.sha256(f"{jax.__version__} {machine}\n{text}".encode()).hexdigest()[:16]
    file = None if kept is None else kept / f"{program}.json"
    if file is not None and file.exists():
        return from_dict(json.loads(file.read_text(encoding="utf-8")))
    begun, refused, sizes = time.perf_counter(), "", (0, 0, 0)
    try:
        memory = lowered.compile().memory_analysis()
        sizes = (memory.argument_size_in_bytes, memory.temp_size_in_bytes, memory.peak_memory_in_bytes)
    except jax.errors.JaxRuntimeError as error:
        refused = str(error)
        sizes = (0, 0, _needed(refused))
    result = Compiled(program, round(time.perf_counter() - begun, 1), *sizes, ledger(text), refused.split("\n")[0])
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dataclasses.asdict(result))
    return result


def from_dict(values: dict) -> Compiled:
    """What dataclasses.asdict made of one."""
    collectives = {kind: Collectives(**found) for kind, found in values["collectives"].items()}
    return Compiled(**{**values, "collectives": collectives})


def _needed(refused: str) -> int:
    """Bytes that the compiler says it would take, where it refuses for want of memory; 0 where it says none."""
    found = re.search(r"(?:[Uu]sed|needs?|HLO temporaries \() ?([\d.]+)([KMG])", refused)
    return 0 if found is None else int(float(found[1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[found[2]])
