"""The end of a process whose peer has died: a collective that waits for it would wait for ever on most hardware.

Every process keeps a connection to process 0. A dead process's connection is closed by its system at once; a dead host
is silent. Whoever sees either says so in one sentence and ends with the exit code that asks for a restart.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

MISTAKE, RESTART = 2, 75  # exit codes; EX_TEMPFAIL of sysexits.h: the same command, started again, goes on
BEAT, SILENCE = 1.0, 60.0  # seconds
GRACE = 0.5  # seconds for a process to say its own reason first
LAST = 20.0  # seconds that process 0 waits for the others to be gone
_ALIVE = 255  # any other byte is the exit code with which a peer leaves


class LostPeer(RuntimeError):
    """One of the processes that share the work is not there."""


@contextlib.contextmanager
def ended_after(seconds: float, sentence: str) -> Iterator[None]:
    """The process ends with RESTART if what is within takes longer: JAX's own end of a failed start can hang."""

    def end() -> None:
        print(f"\n{sentence} Start all of them again.", file=sys.stderr, flush=True)
        os._exit(RESTART)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _on_abort(number: int) -> None:
    said = "a peer was lost, or it crashed. Start all processes again to go on from the last checkpoint."
    print(f"\nThis process ends because JAX aborted it: {said}", file=sys.stderr, flush=True)
    os._exit(RESTART)


# JAX aborts the others when process 0 dies, at the same moment as `Peers` sees it. Python's own handlers run too late.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_ON_ABORT = _HANDLER(_on_abort)


class Peers:
    """Connections by number of the process at the other end."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self._connections = connections
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, _HANDLER], ctypes.c_void_p
        libc.signal(signal.SIGABRT, _ON_ABORT)
        self._listening: list[threading.Thread] = []
        self._closed = threading.Event()
        self._ending = threading.Event()
        for process, connection in connections.items():
            connection.settimeout(SILENCE)
            thread = threading.Thread(target=self._listen, args=(process, connection), name="peer", daemon=True)
            thread.start()
            self._listening.append(thread)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    @staticmethod
    def listen() -> socket.socket:
        """A socket on all addresses and any free port."""
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", 0))

    @classmethod
    def accept(cls, listening: socket.socket, token: bytes, processes: int) -> "Peers":
        """Process 0: wait for all others. Whoever does not know the token is no peer. TimeoutError: one never came."""
        listening.settimeout(SILENCE)
        connections: dict[int, socket.socket] = {}
        with listening:
            while len(connections) < processes - 1:
                connection, _ = listening.accept()
                connection.settimeout(SILENCE)
                hello = _read(connection, len(token) + 4)
                if hello[: len(token)] == token:
                    connections[int.from_bytes(hello[len(token) :], "big")] = connection
                else:
                    connection.close()
        return cls(connections)

    @classmethod
    def connect(cls, host: str, port: int, token: bytes, process: int) -> "Peers":
        """Any other process. OSError: process 0 cannot be reached at this port."""
        connection = socket.create_connection((host, port), SILENCE)
        connection.sendall(token + process.to_bytes(4, "big"))
        return cls({0: connection})

    def close(self, code: int) -> None:
        """Tell the others that this process leaves, and with which exit code; their ends are no news any more.

        Process 0 goes last: JAX aborts a process that is there when its service on process 0 shuts down.
        """
        self._closed.set()
        self._send(code)
        if 0 not in self._connections:
            for thread in self._listening:
                thread.join(timeout=LAST)

    def settle(self) -> None:
        """Wait for what an error may have been the first sign of: the process ends meanwhile if a peer is lost."""
        if self._ending.wait(timeout=2 * BEAT):
            threading.Event().wait()

    def _send(self, byte: int) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # the listening thread sees it too, and says so
                connection.sendall(bytes([byte]))

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._send(_ALIVE)

    def _leaves(self, heard: bytes) -> bool:
        return heard == b"\0" or (heard != b"" and self._closed.is_set())

    def _listen(self, process: int, connection: socket.socket) -> None:
        heard = b""
        try:
            while (heard := connection.recv(1)) == bytes([_ALIVE]):
                pass
            while self._leaves(heard) and connection.recv(1):
                pass
        except OSError:  # closed in mid-air, or silent for too long
            heard = heard if self._leaves(heard) else b""
        if heard == b"\0" or self._closed.is_set():
            return
        self._ending.set()
        time.sleep(GRACE if heard else 0)
        if not self._closed.is_set():
            self._end(process, heard[0] if heard else None)

    def _end(self, process: int, code: int | None) -> None:
        said = "it was lost" if code is None else f"it ended with exit code {code}"
        advice = "Start all processes again to go on from the last checkpoint." if code is None else "See what it said."
        print(f"\nThis process ends because of process {process}: {said}. {advice}", file=sys.stderr, flush=True)
        self._send(RESTART if code is None else code)
        sys.stdout.flush()
        os._exit(RESTART if code is None else code)  # the main thread may wait for the dead inside of a collective


def _read(connection: socket.socket, size: int) -> bytes:
    """As many bytes, or fewer from one that hangs up or is too slow."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < size and (more := connection.recv(size - len(data))):
            data += more
    return data
