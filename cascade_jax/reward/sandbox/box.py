"""A sandbox as its user sees it: a folder, files in it, programs that run there."""

import contextlib
import marshal
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_jax.reward.sandbox.limits import Finished, Limits, SandboxBroken
from cascade_jax.reward.sandbox.start import ENVIRONMENT, started, user_of

_GRACE = 15.0  # seconds that the sandbox itself may take for a reply


class Sandbox:
    """One sandbox, from any threads, one call at a time. Files stay between runs; `close` leaves nothing behind.

    Paths are those inside: relative ones start in `folder`. Every call may raise SandboxBroken, after which the
    sandbox is closed.
    """

    def __init__(
        self,
        command: Sequence[str],
        codes: Sequence[bytes],
        limits: Limits,
        *,
        folder: str = "",
        system_calls: bytes = b"",
    ):
        # Without namespaces the folder is one of this machine; {folder} in the command is then its name.
        self._shared = tempfile.mkdtemp(prefix="sandbox-") if not folder else ""
        self.folder, self.limits = folder or self._shared, limits
        self._places = {
            "HOME": self.folder,
            "TMPDIR": self._shared or "/tmp",
            "PATH": f"{ENVIRONMENT['PATH']}:{os.path.dirname(command[-1])}",  # where the interpreter is
        }
        self._lock = threading.RLock()
        self._unread = b""
        self._closed = False
        self._process = started([part.replace("{folder}", self.folder) for part in command], system_calls)
        self._handle = os.pidfd_open(self._process.pid)
        self._selector = selectors.PollSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._selector.register(self._handle, selectors.EVENT_READ)
        self._user = user_of(self._process.pid) if os.geteuid() == 0 else None
        if self._shared and self._user is not None:
            os.chown(self._shared, self._user, self._user)
        setup = {"uid": self._user, "folder": self.folder, "shared": bool(self._shared), "limits": vars(limits)}
        self.ask((list(codes), setup))

    def write(self, path: str, data: bytes) -> None:
        """OSError: the file cannot be written, as where the disk is full."""
        self.ask(("write", str(path), bytes(data)))

    def read(self, path: str) -> bytes:
        """At most Limits.file_size bytes. OSError: not there, or not a regular file."""
        return self.ask(("read", str(path)))[1]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Finished:
        """A program to its end, or to that of its `seconds`; whatever it left running is killed.

        env: added to the fixed environment. A program that cannot be started ends with 127, as in a shell.
        """
        seconds = self.limits.seconds if seconds is None else seconds
        environment = ENVIRONMENT | self._places | dict(env or {})
        request = ("run", list(argv), bytes(stdin), environment, seconds)
        return finished(*self.ask(request, seconds=seconds))[0]

    def load(self, source: str) -> Finished:
        """Compile a Python program for `test`. Its return code is 0, or 1 where it is no Python."""
        return finished(*self.ask(("load", source, self.limits.seconds), seconds=self.limits.seconds))[0]

    def tests(
        self, cases: Sequence[tuple[bytes, Sequence[Any]]], *, function: str | None = None
    ) -> Iterator[tuple[Finished, bytes]]:
        """Run the loaded program on each (stdin, arguments), in forks of the interpreter that compiled it.

        With `function`, the function of that name, or the method of its class Solution, is then called with the
        arguments (plain data); its result comes as the text that `results.read` reads. A caller that wants no more of
        them closes the iterator, and with it the sandbox.
        """
        request = ("tests", [(stdin, tuple(arguments)) for stdin, arguments in cases], function, self.limits.seconds)
        left = len(cases)
        try:
            reply = self.ask(request, seconds=self.limits.seconds) if cases else None
            while left:
                left -= 1
                yield finished(*reply)
                reply = self._receive(self.limits.seconds) if left else None
        finally:
            if left:
                self.close()

    def close(self) -> None:
        """End everything in it. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for end in (self._process.stdin, self._process.stdout):
                end.close()  # the resident ends by itself where its input does
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._kill()
            if self._shared:
                self._sweep()
            self._process.stderr.close()
            self._selector.close()
            os.close(self._handle)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: tuple[Any, ...], *, seconds: float = 0.0) -> tuple[list[str], bytes]:
        """The words of the reply's first line, and what comes after it."""
        with self._lock:
            if self._closed:
                raise SandboxBroken("the sandbox is closed")
            try:
                self._send(marshal.dumps(request, 2))
            except SandboxBroken:
                self.close()
                raise
            return self._receive(seconds)

    def _receive(self, seconds: float) -> tuple[list[str], bytes]:
        with self._lock:
            try:
                return self._reply(time.monotonic() + seconds + _GRACE)
            except SandboxBroken:
                self.close()
                raise

    def _send(self, data: bytes) -> None:
        data = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while data:
                data = data[self._process.stdin.write(data) :]
        except BrokenPipeError:
            raise SandboxBroken(self._why()) from None

    def _reply(self, deadline: float) -> tuple[list[str], bytes]:
        size = int.from_bytes(self._take(4, deadline), "big")
        head, _, rest = self._take(size, deadline).partition(b"\n")
        words = head.decode(errors="replace").split(" ", 2)
        if self._process.poll() is not None:
            raise SandboxBroken(self._why())
        if words[0] == "error":
            raise OSError(int(words[1]), words[2])
        return head.decode(errors="replace").split(" "), rest

    def _take(self, size: int, deadline: float) -> bytes:
        while len(self._unread) < size:
            ready = [key.fileobj for key, _ in self._selector.select(max(0.0, deadline - time.monotonic()))]
            if not ready:
                raise SandboxBroken("the sandbox gave no answer in time")
            chunk = os.read(self._process.stdout.fileno(), 1 << 20) if self._process.stdout in ready else b""
            if not chunk:
                raise SandboxBroken(self._why())
            self._unread += chunk
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _why(self) -> str:
        """What is known about a sandbox that has died."""
        self._kill()
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return f"the sandbox has died (status {self._process.returncode}): {said[-1] if said else 'without a word'}"

    def _sweep(self) -> None:
        """Without namespaces: what was left by a sandbox whose own process was killed."""
        for path in Path("/proc").glob("[0-9]*") if self._user is not None else ():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if path.stat().st_uid == self._user:
                    os.kill(int(path.name), signal.SIGKILL)
        shutil.rmtree(self._shared, ignore_errors=True)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def finished(words: list[str], rest: bytes) -> tuple[Finished, bytes]:
    """A reply about a run, read: how it ended, and its result."""
    try:
        code, killed, clipped, seconds, out, err = words[1:]
        stdout, stderr, result = rest[: int(out)], rest[int(out) :][: int(err)], rest[int(out) + int(err) :]
        ended = Finished(int(code), stdout, stderr, float(seconds), None if killed == "no" else killed, clipped == "1")
    except ValueError:
        raise SandboxBroken("the sandbox gave an answer that cannot be read") from None
    return ended, result
