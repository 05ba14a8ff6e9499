"""A judge on a loopback port that speaks the OpenAI protocol: /v1/models and /v1/chat/completions."""

import contextlib
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cascade_jax.reward import rule_judge

Messages = Sequence[Mapping[str, Any]]
# (messages, response_1, response_2) -> scores, or text that is sent as it is
Compare = Callable[[Messages, str, str], Mapping[str, float] | str]
MODEL = "rule-judge"


@dataclass(frozen=True)
class Faults:
    """What is wrong with a judge, to see what that does to training. Hangs on the request alone, its seed included."""

    noise: float = 0.0  # standard deviation of what is added to each score
    position_bias: float = 0.0  # added to the score of the response that is shown first
    malformed: float = 0.0  # share of the replies that cannot be read
    delay: float = 0.0  # seconds before each reply

    def bent(self, verdict: Mapping[str, float] | str, rng: random.Random) -> Mapping[str, float] | str:
        """Scores with noise and bias, within 1 to 5, and the ranking that follows from them."""
        if isinstance(verdict, str) or not (self.noise or self.position_bias):
            return verdict
        first = verdict["score_1"] + self.position_bias + rng.gauss(0, self.noise)
        second = verdict["score_2"] + rng.gauss(0, self.noise)
        return rule_judge.scores(*(min(5.0, max(1.0, round(score, 4))) for score in (first, second)))


@dataclass(frozen=True)
class RunningJudge:
    """`url` ends in /v1."""

    url: str
    server: ThreadingHTTPServer


@contextlib.contextmanager
def running(
    compare: Compare = rule_judge.compare,
    *,
    reply: Callable[[Messages], str] | None = None,
    faults: Faults = Faults(),
    port: int = 0,
) -> Iterator[RunningJudge]:
    """Serve from a thread of this process while the context lasts; port 0 takes a free one. OSError: port in use.

    `compare` answers questions in the roles of a GenRM, `reply` all others; by default these are the rules' too.
    """
    server = serve(compare, reply=reply, faults=faults, port=port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="judge", daemon=True)
    thread.start()
    try:
        yield RunningJudge(address(server), server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve(
    compare: Compare = rule_judge.compare,
    *,
    reply: Callable[[Messages], str] | None = None,
    faults: Faults = Faults(),
    port: int = 0,
) -> ThreadingHTTPServer:
    """A bound server whose `serve_forever` answers. OSError: port in use."""

    def answer(messages: Messages, rng: random.Random) -> str:
        def bent(*question: Any) -> Mapping[str, float] | str:
            return faults.bent(compare(*question), rng)

        time.sleep(faults.delay)
        if rng.random() < faults.malformed:
            return "I cannot decide."
        responses = [m["content"] for role in ("response_1", "response_2") for m in messages if m["role"] == role]
        if not responses:
            return reply(messages) if reply else rule_judge.reply(messages, bent)
        first, second = responses
        verdict = bent([m for m in messages if m["role"] not in ("response_1", "response_2")], first, second)
        return verdict if isinstance(verdict, str) else json.dumps(verdict)

    class Handler(_Handler):
        judge = staticmethod(answer)

    return _Server(("127.0.0.1", port), Handler)


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
    judge: Callable[[Messages, random.Random], str]

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._error(404, f"no such path {self.path}; there are /v1/models and /v1/chat/completions")
        self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "cascade_jax"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self._error(404, f"no such path {self.path}; there are /v1/models and /v1/chat/completions")
        try:
            content = self.judge(json.loads(body)["messages"], random.Random(hashlib.sha256(body).digest()))
        except (ValueError, LookupError, TypeError):
            return self._error(
                400, "the request needs messages of the roles response_1 and response_2, or a question for a judge"
            )
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
