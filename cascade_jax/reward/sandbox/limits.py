"""What a program in a sandbox may use, and what is said when one ends."""

import math
from dataclasses import dataclass

MIB = 1 << 20


class SandboxBroken(Exception):
    """The sandbox itself failed, so nothing is known about the program: `no_verdict`, never reward 0."""


@dataclass(frozen=True)
class Limits:
    """Of one sandbox. Sizes in bytes. `disk` holds for the writable folder and, once more, for shared memory."""

    seconds: float = 10.0  # wall clock and CPU of one run
    memory: int = 1024 * MIB  # of one process, and of all together
    processes: int = 64  # threads count
    output: int = 8 * MIB  # that is kept of stdout and of stderr
    file_size: int = 64 * MIB
    disk: int = 256 * MIB
    open_files: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0 or not math.isfinite(value):
                raise ValueError(f"{name}={value} must be a finite number above 0.")


@dataclass(frozen=True)
class Finished:
    """How a run ended. stdout and stderr: at most Limits.output bytes, `clipped` where there was more.

    returncode: as of `subprocess`, -N where signal N ended it. killed: why the sandbox ended it ("time", "memory",
    "disk"), else None.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    seconds: float
    killed: str | None = None
    clipped: bool = False

    @property
    def timed_out(self) -> bool:
        return self.killed == "time"

    @property
    def out_of_memory(self) -> bool:
        return self.killed == "memory"
