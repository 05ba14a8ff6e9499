"""A judge on a loopback port that speaks the OpenAI protocol: /v1/models and /v1/chat/completions."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cascade_jax.reward import rule_judge

# (messages, response_1, response_2) -> scores, or text that is sent as it is
Compare = Callable[[Sequence[Mapping[str, Any]], str, str], Mapping[str, float] | str]
MODEL = "rule-judge"


@dataclass(frozen=True)
class RunningJudge:
    """`url` ends in /v1."""

    url: str
    server: ThreadingHTTPServer


@contextlib.contextmanager
def running(compare: Compare = rule_judge.compare, *, port: int = 0) -> Iterator[RunningJudge]:
    """Serve from a thread of this process while the context lasts; port 0 takes a free one. OSError: port in use."""
    server = serve(compare, port=port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="judge", daemon=True)
    thread.start()
    try:
        yield RunningJudge(address(server), server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve(compare: Compare = rule_judge.compare, *, port: int = 0) -> ThreadingHTTPServer:
    """A bound server whose `serve_forever` answers. OSError: port in use."""

    class Handler(_Handler):
        judge = staticmethod(compare)

    server = _Server(("127.0.0.1", port), Handler)
    return server


def address(server: ThreadingHTTPServer) -> str:
    host, port = server.server_address[:2]
    return f"http://{host}:{port}/v1"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet
    judge: Compare

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._error(404, f"no such path {self.path}; there are /v1/models and /v1/chat/completions")
        self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "cascade_jax"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self._error(404, f"no such path {self.path}; there are /v1/models and /v1/chat/completions")
        try:
            messages = json.loads(body)["messages"]
            (first,) = [m["content"] for m in messages if m["role"] == "response_1"]
            (second,) = [m["content"] for m in messages if m["role"] == "response_2"]
            conversation = [m for m in messages if m["role"] not in ("response_1", "response_2")]
        except (ValueError, LookupError, TypeError):
            return self._error(400, "the request needs messages, one of role response_1 and one of role response_2")
        verdict = self.judge(conversation, first, second)
        content = verdict if isinstance(verdict, str) else json.dumps(verdict)
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._send(
            200, {"id": "judgement", "object": "chat.completion", "model": MODEL, "created": 0, "choices": [choice]}
        )

    def log_message(self, *_: Any) -> None:
        """Thousands of comparisons per step are no news."""

    def _error(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _send(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
