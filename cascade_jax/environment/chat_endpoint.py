"""An OpenAI-compatible endpoint of one episode: an agent's program asks, and the turns of our loop answer.

Any agent that speaks chat completions, in whatever process, is so driven in lockstep with all other episodes, and its
tokens stay one chain: what it sends is only read for the messages that are new to us.
"""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cascade_jax.data import messages as chat
from cascade_jax.rollout.environment import Message
from cascade_jax.types import Reply

MODEL = "policy"


@dataclass
class Asked:
    """A request that waits for its answer."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    answer: asyncio.Future = field(repr=False)


class ChatEndpoint:
    """`asked` gives requests in the order of their coming. Open and close it in the event loop that reads them."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._open: set[asyncio.Future] = set()
        self._loop = asyncio.get_running_loop()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"endpoint": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    async def close(self) -> None:
        for answer in self._open:
            answer.cancel()
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def ask(self, body: Mapping[str, Any]) -> tuple[Reply, str]:
        """The reply and its finish reason, from a thread of the server's. ValueError: the request cannot be read."""
        messages, tools = chat.parse_messages(body.get("messages")), chat.parse_tools(body.get("tools") or [])

        async def wait() -> tuple[Reply, str]:
            request = Asked(messages, tools, self._loop.create_future())
            self.asked.put_nowait(request)
            self._open.add(request.answer)
            try:
                return await request.answer
            finally:
                self._open.discard(request.answer)

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()


def completion(reply: Reply, finish: str, number: int) -> dict[str, Any]:
    """A chat completion; `number` keeps the ids of tool calls apart from those of other turns."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
            }
            for i, call in enumerate(reply.tool_calls)
        ]
    reason = "tool_calls" if reply.tool_calls and finish == "stop" else finish
    return {
        "id": f"turn_{number}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def events(whole: Mapping[str, Any]) -> bytes:
    """The same as server-sent events, in as few as there can be."""
    [choice] = whole["choices"]
    calls = [{"index": i, **call} for i, call in enumerate(choice["message"].get("tool_calls", ()))]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    head = {**whole, "object": "chat.completion.chunk"}
    del head["usage"]
    chunks: Sequence[Mapping[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {**head, "choices": [], "usage": whole["usage"]},
    ]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    turns = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    endpoint: ChatEndpoint

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "cascade_jax", "created": 0}]}
        self._send(200, json.dumps(models).encode())

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            if not self.path.endswith("/chat/completions"):
                raise ValueError(f"there is no {self.path}; there is /v1/chat/completions")
            reply, finish = self.endpoint.ask(body)
        except (ValueError, AttributeError) as error:
            message = {"message": str(error), "type": "invalid_request_error"}
            return self._send(400, json.dumps({"error": message}).encode())
        except CancelledError:  # the episode is over
            return self._send(503, b'{"error": {"message": "the episode is over", "type": "server_error"}}')
        self.server.turns += 1
        whole = completion(reply, finish, self.server.turns)
        if body.get("stream"):
            return self._send(200, events(whole), "text/event-stream")
        self._send(200, json.dumps(whole).encode())

    def log_message(self, *_: Any) -> None:
        """Turns are logged by the loop."""

    def _send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
