"""Worker processes for code that may hang or eat memory: each can be killed at any moment and is replaced."""

import json
import os
import queue
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_START_SECONDS = 120.0  # an overloaded machine imports slowly


class WorkerFailed(Exception):
    """The worker gave no result. `started` tells whether it ever came up: if not, the request is not at fault."""

    def __init__(self, reason: str, *, started: bool = True):
        super().__init__(reason)
        self.started = started


class WorkerPool:
    """Up to `size` processes of a script that speaks JSON lines, started when first needed, shared by any threads."""

    def __init__(self, script: Path, arguments: tuple[str, ...], *, size: int, seconds: float):
        self._command = [
            sys.executable,
            "-P",
            str(script),
            *arguments,
        ]  # -P: the script's folder must not shadow modules
        self._seconds = seconds
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._live: set[_Worker] = set()
        self._finalizer = weakref.finalize(self, _end_all, self._live)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer. WorkerFailed: no start, a hang (the worker is killed), or a death."""
        worker = self._idle.get()
        try:
            if worker is None or worker.dead():
                self._retire(worker)
                worker = None  # stays so if the next line fails
                worker = self._start()
            return worker.ask(request, self._seconds)
        except WorkerFailed:
            self._retire(worker)
            worker = None
            raise
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all workers; a later request starts new ones."""
        _end_all(self._live)

    def _start(self) -> "_Worker":
        worker = _Worker(self._command)
        self._live.add(worker)
        try:
            worker.read(time.monotonic() + _START_SECONDS)
        except WorkerFailed as error:
            self._retire(worker)
            raise WorkerFailed(f"a worker did not start: {error}", started=False) from None
        return worker

    def _retire(self, worker: "_Worker | None") -> None:
        if worker is not None:
            worker.end()
            self._live.discard(worker)


class _Worker:
    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._unread = b""

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerFailed("the worker has died", started=False) from None
        return self.read(time.monotonic() + seconds)

    def read(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise WorkerFailed("no result in time")
            chunk = os.read(self._process.stdout.fileno(), 65_536)
            if not chunk:
                raise WorkerFailed("the worker has died")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def dead(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        self._process.stdin.close()
        self._process.stdout.close()


def _end_all(workers: set[_Worker]) -> None:
    while workers:
        workers.pop().end()
