"""The process that lives in a sandbox, writes and reads its files and runs its programs. Standard library alone.

It is sent into the sandbox as bytecode and is process 1 there, so no program in it can end it, and when it ends, all
others do. Requests come as marshal data; what goes out is plain bytes, since whoever reads it must not trust them.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # to import `typing` takes longer than most programs run
if TYPE_CHECKING:
    from collections.abc import Callable

_TICK = 0.05  # seconds between two looks at memory and disk
_MOST_FILES = 50_000
_KILL = 9


class Resident:
    """Serves the requests that come by one descriptor and answers by another, until the first is closed."""

    def __init__(self, requests: int, replies: int, folder: str, limits: dict[str, int]):
        self.requests, self.replies, self.folder, self.limits = requests, replies, folder, limits

    def serve(self) -> None:
        """Answer one request after another. The end of the input is the end of this process."""
        while True:
            size = int.from_bytes(self._take(4), "big")
            name, *arguments = marshal.loads(self._take(size))
            try:
                getattr(self, name)(*arguments)
            except OSError as error:
                self.reply(b"error %d %s" % (error.errno or 0, str(error.strerror).encode()))

    def reply(self, head: bytes, *parts: bytes) -> None:
        """Length, a line, then the parts."""
        data = b"".join([head, b"\n", *parts])
        data = len(data).to_bytes(4, "big") + data
        while data:
            data = data[os.write(self.replies, data) :]

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            chunk = os.read(self.requests, size - len(taken))
            if not chunk:
                os._exit(0)
            taken += chunk
        return taken

    def write(self, path: str, data: bytes) -> None:
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK  # a program may have put a pipe there
        file = os.open(path, flags, 0o644)
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        self.reply(b"ok")

    def read(self, path: str) -> None:
        file = os.open(os.path.join(self.folder, path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            data = contents(file, self.limits["file_size"])
        finally:
            os.close(file)
        self.reply(b"ok", data)

    def run(self, argv: list[str], stdin: bytes, env: dict[str, str], seconds: float) -> None:
        """One program in the folder, and the end of all that it leaves running."""

        def start() -> None:
            try:
                os.execvpe(argv[0], argv, env)
            except OSError as error:
                os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
                os._exit(127)

        self.started(start, stdin, seconds)

    def started(self, start: Callable[[], None], stdin: bytes, seconds: float) -> None:
        """Run `start` in a fork that has the files as its descriptors 0, 1 and 2, and reply how it ended."""
        files = [self._file(), self._file(), self._file()]
        write_all(files[0], stdin)
        os.lseek(files[0], 0, os.SEEK_SET)
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become_program(files, seconds)
            start()
            os._exit(0)
        status, killed = self._watch(pid, begun + seconds)
        took = time.monotonic() - begun
        outputs = [contents(file, self.limits["output"] + 1) for file in files[1:]]
        for file in files:
            os.close(file)
        clipped = any(len(output) > self.limits["output"] for output in outputs)
        outputs = [output[: self.limits["output"]] for output in outputs]
        code = os.waitstatus_to_exitcode(status)
        self.reply(b"ran %d %s %d %.6f %d" % (code, killed, clipped, took, len(outputs[0])), *outputs)

    def _file(self) -> int:
        return os.open(self.folder, os.O_TMPFILE | os.O_RDWR, 0o600)

    def _become_program(self, files: list[int], seconds: float) -> None:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, self.limits["open_files"])
        cpu = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        os.chdir(self.folder)

    def _watch(self, pid: int, deadline: float) -> tuple[int, bytes]:
        handle = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self.requests, 0)  # a closed request pipe is reported all the same
        killed = b"no"
        while True:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0, min(_TICK, left)) * 1000))
            if self.requests in ready:
                os._exit(0)
            if handle in ready:
                break
            killed = b"time" if left <= 0 else self._exceeded()
            if killed != b"no":
                break
        os.close(handle)
        return self._end_all(pid), killed

    def _exceeded(self) -> bytes:
        """What all processes together have too much of."""
        pages = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                try:
                    with open(f"/proc/{name}/statm", "rb") as file:
                        fields = file.read().split()
                except OSError:
                    continue
                pages += int(fields[1]) - int(fields[2])
        if pages * resource.getpagesize() > self.limits["memory"]:
            return b"memory"
        space = os.statvfs(self.folder)
        return b"disk" if space.f_files - space.f_ffree > _MOST_FILES else b"no"

    def _end_all(self, pid: int) -> int:
        """Kill every other process of the sandbox; the status of `pid`."""
        status = 0
        try:  # noqa: SIM105: contextlib is slow to import
            os.kill(-1, _KILL)
        except ProcessLookupError:
            pass
        while True:
            try:
                ended, how = os.waitpid(-1, 0)
            except ChildProcessError:
                return status
            if ended == pid:
                status = how


def contents(file: int, most: int) -> bytes:
    """Of a regular file from its start, `most` bytes at most. OSError where it is something else."""
    if not os.path.stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(22, "not a regular file")
    size = min(os.fstat(file).st_size, most)
    data = b""
    while len(data) < size:
        chunk = os.pread(file, size - len(data), len(data))
        if not chunk:
            break
        data += chunk
    return data


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def confine(uid: int | None, folder: str, limits: dict[str, int]) -> None:
    """Become the unprivileged user of this sandbox, then take the limits, which hold for all that it starts."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.umask(0o022)
    os.makedirs(folder, exist_ok=True)
    for name, value in (
        ("CORE", 0),
        ("AS", limits["memory"]),
        ("FSIZE", limits["file_size"]),
        ("NOFILE", limits["open_files"]),
        ("NPROC", limits["processes"]),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def main(setup: dict[str, object]) -> None:
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    confine(setup["uid"], setup["folder"], setup["limits"])
    resident = Resident(requests, replies, setup["folder"], setup["limits"])
    resident.reply(b"up", sys.version.split()[0].encode())
    resident.serve()
