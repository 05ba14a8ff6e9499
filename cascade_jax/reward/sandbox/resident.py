"""The process that lives in a sandbox, writes and reads its files and runs its programs. Standard library alone.

It is sent into the sandbox as bytecode, after `confinement`, whose names it sees. With namespaces it is process 1, so
no program can end it, and when it ends, all others do. Requests come as marshal data; what goes out is plain bytes,
since whoever reads it must not trust them.
"""

from __future__ import annotations

import marshal
import os
import select
import time

TYPE_CHECKING = False  # to import `typing` takes longer than most programs run
if TYPE_CHECKING:
    from collections.abc import Callable

    from cascade_jax.reward.sandbox.confinement import end_others, exceeded, limit

    Ended = tuple[int, bytes, float, list[bytes]]  # status, why it was killed, seconds, stdout and stderr and result

_TICK = 0.05  # seconds between two looks at memory and disk


class Run:
    """One fork: its files, its process and how it ended."""

    def __init__(self):
        self.files, self.pid, self.status = [], 0, 9
        self.begun, self.seconds, self.killed = 0.0, 0.0, b"no"

    def took(self) -> None:
        self.seconds = time.monotonic() - self.begun


class Resident:
    """Serves the requests that come by one descriptor and answers by another, until the first is closed."""

    def __init__(self, requests: int, replies: int, setup: dict[str, object]):
        self.requests, self.replies, self.folder = requests, replies, setup["folder"]
        self.limits, self.shared, self.user = setup["limits"], setup["shared"], setup["uid"]
        self.used = False  # by a program, whose fault it may then be that nothing can be started

    def serve(self, more: dict[str, Callable[..., None]]) -> None:
        """Answer one request after another. The end of the input is the end of this process."""
        answers = {"write": self.write, "read": self.read, "run": self.run, **more}
        while True:
            size = int.from_bytes(self._take(4), "big")
            name, *arguments = marshal.loads(self._take(size))
            try:
                answers[name](*arguments)
            except OSError as error:
                self.reply(b"error %d %s" % (error.errno or 0, str(error.strerror).encode()))

    def reply(self, head: bytes, *parts: bytes) -> None:
        """Send one answer."""
        write_all(self.replies, framed(head, *parts))

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            chunk = os.read(self.requests, size - len(taken))
            if not chunk:
                self.leave()
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

        self.reply_ended(*self.fork([start], [stdin], seconds, result=False))

    def fork(
        self, starts: list[Callable[[], None]], stdins: list[bytes], seconds: float, *, result: bool = True
    ) -> list[Ended]:
        """Run each of `starts` in a fork of its own, all at the same time, until it ends or has to be ended.

        Files are the descriptors 0, 1, 2 of each and, with `result`, 3.
        """
        runs = [Run() for _ in stdins]
        for run, start, stdin in zip(runs, starts, stdins, strict=True):
            try:
                run.files = self._files(stdin, result)
                run.begun = time.monotonic()
                run.pid = os.fork()
            except OSError:
                if not self.used:
                    raise
                run.killed = b"disk"  # or processes: what ran before has left nothing to start another with
                continue
            if run.pid == 0:
                try:
                    self._become_program(run.files, seconds)
                    start()
                finally:
                    os._exit(1)
            self.used = True
        self._watch(runs, time.monotonic() + seconds)
        self._end_all(runs)
        return [self._ended(run) for run in runs]

    def reply_ended(self, *all_ended: Ended) -> None:
        """Tell how forks ended, each with stdout, stderr and its result, if it had one."""
        most, frames = self.limits["output"], []
        for code, killed, seconds, outputs in all_ended:
            clipped = any(len(output) > most for output in outputs)
            outputs = [output[:most] for output in outputs]
            sizes = (len(outputs[0]), len(outputs[1]))
            frames.append(framed(b"ran %d %s %d %.6f %d %d" % (code, killed, clipped, seconds, *sizes), *outputs))
        write_all(self.replies, b"".join(frames))

    def _files(self, stdin: bytes, result: bool) -> list[int]:
        files = [os.open(self.folder, os.O_TMPFILE | os.O_RDWR, 0o600) for _ in range(3 + result)]
        write_all(files[0], stdin)
        os.lseek(files[0], 0, os.SEEK_SET)
        return files

    def _become_program(self, files: list[int], seconds: float) -> None:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(len(files), self.limits["open_files"])
        cpu = int(seconds) + 1
        limit("CPU", cpu, cpu + 1)

    def _watch(self, runs: list[Run], deadline: float) -> None:
        """Until all have ended, or there is a reason to end them."""
        poll = select.poll()
        poll.register(self.requests, 0)  # a closed request pipe is reported all the same
        handles = {os.pidfd_open(run.pid): run for run in runs if run.pid}
        for handle in handles:
            poll.register(handle, select.POLLIN)
        killed = b"no"
        while handles and killed == b"no":
            left = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in poll.poll(max(0, min(_TICK, left)) * 1000)]
            if self.requests in ready:
                self.leave()
            for handle in ready:
                handles.pop(handle).took()
                poll.unregister(handle)
                os.close(handle)
            if not ready:
                killed = b"time" if left <= 0 else exceeded(self.folder, self.shared, self.limits, len(runs))
        for handle, run in handles.items():
            run.killed = killed
            run.took()
            os.close(handle)

    def leave(self) -> None:
        """End, and everything else here before."""
        self._end_all([])
        os._exit(0)

    def _end_all(self, runs: list[Run]) -> None:
        """Kill every other process of the sandbox."""
        end_others(self.shared, self.user)
        statuses = {}
        while True:
            try:
                ended, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            statuses[ended] = status
        for run in runs:
            run.status = statuses.get(run.pid, run.status)

    def _ended(self, run: Run) -> Ended:
        outputs = [contents(file, self.limits["output"] + 1) for file in run.files[1:]] or [b"", b"", b""]
        for file in run.files:
            os.close(file)
        return os.waitstatus_to_exitcode(run.status), run.killed, run.seconds, outputs


def framed(head: bytes, *parts: bytes) -> bytes:
    """Length, a line, then the parts."""
    data = b"".join([head, b"\n", *parts])
    return len(data).to_bytes(4, "big") + data


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
