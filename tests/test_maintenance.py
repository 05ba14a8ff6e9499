"""Google Cloud's announcements, from a real server on a loopback port that answers as its metadata server does."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from launch.preemption import StopOnSignal, announced, metadata_host

ANSWERS = {"maintenance-event": "NONE", "preempted": "FALSE"}


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.removeprefix("/computeMetadata/v1/instance/")
        allowed = self.headers.get("Metadata-Flavor") == "Google" and name in self.server.answers
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(self.server.answers[name].encode() if allowed else b"refused")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    server.answers = dict(ANSWERS)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def stop(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StopOnSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield StopOnSignal()
    server.answers["preempted"] = "TRUE"  # ends the thread
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "value"), [("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"), ("preempted", "TRUE")]
)
def test_an_announcement_asks_for_a_stop(
    server: ThreadingHTTPServer, stop: StopOnSignal, capsys: pytest.CaptureFixture, name: str, value: str
):
    assert not stop() and not stop.preempted
    server.answers[name] = value
    deadline = time.monotonic() + 20
    while not stop():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert stop.preempted
    assert f"Google Cloud announces {name} {value}. Stopping after this step" in capsys.readouterr().err


def test_a_server_that_does_not_answer_stops_nothing(server: ThreadingHTTPServer):
    host = f"127.0.0.1:{server.server_port}"
    server.answers.clear()  # 403
    assert announced(host) is None
    server.answers.update(ANSWERS)
    assert announced(host) is None
    with contextlib.closing(ThreadingHTTPServer(("127.0.0.1", 0), Metadata).socket) as closed:
        port = closed.getsockname()[1]
    assert announced(f"127.0.0.1:{port}") is None


def test_a_signal_tells_a_machine_from_a_person(stop: StopOnSignal):
    os.kill(os.getpid(), signal.SIGINT)
    assert stop() and not stop.preempted
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.preempted
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    assert metadata_host() in (None, "metadata.google.internal")
