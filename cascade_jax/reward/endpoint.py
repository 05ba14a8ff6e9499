"""A client of one model behind an OpenAI-compatible address: retries, a cap on concurrency, seeds, a memory.

Blocking and safe to share among threads; under asyncio it is called through `asyncio.to_thread`.
"""

import hashlib
import http.client
import json
import math
import os
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from cascade_jax.config import ConfigError, JudgeConfig

Messages = Sequence[Mapping[str, Any]]

_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds before the first retry of what failed, which doubles, and the most
_DOWN = 5.0  # seconds during which a dead endpoint is tried once a request and not again
_REMEMBERED = 65_536  # replies
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class Answer(NamedTuple):
    """What `read` made of the reply, or None and why. `unreadable`: replies came, and none could be read."""

    value: Any
    failure: str = ""
    unreadable: bool = False


class Request(NamedTuple):
    """`draw` tells apart samples of one question: another draw has another seed."""

    messages: Messages
    draw: int = 0


class Endpoint:
    """Equal requests are asked once and remembered. A context manager.

    ConfigError: a url that is not http(s)://host[:port][/path], or a key_variable that is not set.
    """

    def __init__(self, config: JudgeConfig):
        address = urllib.parse.urlsplit(config.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"judge.url={config.url!r} is not an address; give it as http://host:port/v1.")
        path = address.path.rstrip("/")
        self._config = config
        self._path = (path if path.endswith("/v1") else f"{path}/v1") + "/chat/completions"
        self.concurrency = config.concurrency  # requests at a time, from however many threads
        self._headers = {"Content-Type": "application/json", **_authorization(config)}
        self.where = f"judge at {address.scheme}://{address.netloc}{self._path}"
        # The standard library's client costs a fifth of httpx per request, and a demo step makes 448 of them.
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._free: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()
        for _ in range(config.concurrency):
            self._free.put(kind(address.netloc, timeout=config.timeout))
        self._executor = ThreadPoolExecutor(config.concurrency, thread_name_prefix="judge-client")
        self._lock = threading.Lock()
        self._asked: dict[str, Future[str]] = {}  # replies by the hash of their request, and those on their way
        self._down_at = -math.inf

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._close_idle()

    def ask(self, request: Request, read: Callable[[str], Any]) -> Answer:
        """The reply as `read` reads it (None: it cannot). Failures are retried, then told, never put into a default."""
        return self._ask(request, read, time.monotonic())

    def ask_all(self, requests: Sequence[Request], read: Callable[[str], Any]) -> list[Answer]:
        """One answer per request, as many at a time as the config allows."""
        began = time.monotonic()
        answers = list(self._executor.map(lambda request: self._ask(request, read, began), requests))
        self._close_idle()  # until the next step, the other side would have given them up
        return answers

    def _ask(self, request: Request, read: Callable[[str], Any], began: float) -> Answer:
        body = {
            "model": self._config.model,
            "messages": [dict(message) for message in request.messages],
            "temperature": self._config.temperature,
            "top_p": self._config.top_p,
            "max_tokens": self._config.max_tokens,
        }
        key = hashlib.sha256(f"{request.draw}\0{json.dumps(body)}".encode()).hexdigest()
        with self._lock:
            earlier = self._asked.get(key)
            if earlier is None:
                mine = self._asked[key] = Future()
        if earlier is not None:
            text, failed = earlier.result()
            return failed or Answer(read(text))
        try:
            result = self._try(key, body, read, began)
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        text, failed = result
        if failed is not None:
            self._forget(key)
        mine.set_result(result)
        with self._lock:
            while len(self._asked) > _REMEMBERED:
                del self._asked[next(iter(self._asked))]
        return failed or Answer(read(text))

    def _forget(self, key: str) -> None:
        with self._lock:
            self._asked.pop(key, None)

    def _try(
        self, key: str, body: Mapping[str, Any], read: Callable[[str], Any], began: float
    ) -> tuple[str, Answer | None]:
        """A reply that can be read, or the answer that says why there is none."""
        failed = Answer(None)
        for attempt in range(1 + self._config.retries):
            if self._down_at > began:  # found out while this one waited
                return "", Answer(None, f"{self.where} cannot be reached")
            if attempt and not failed.unreadable:
                # Of two requests that failed together, one comes back later; by its hash, so that runs repeat.
                jitter = 0.5 + int(key[8:16], 16) / 2**32
                time.sleep(min(_LONGEST_PAUSE, _PAUSE * 2 ** (attempt - 1)) * jitter)
            # The seed hangs on the question and the attempt alone, so that a run that is repeated asks the same.
            seed = (int(key[:8], 16) + attempt) % 2**31
            try:
                text = self._post(json.dumps({**body, "seed": seed}).encode())
            except _Failed as error:
                failed = Answer(None, str(error))
                known = time.monotonic() - self._down_at < _DOWN
                if error.down and (known or attempt == self._config.retries):
                    self._down_at = time.monotonic()
                    return "", failed
                if error.final:
                    return "", failed
                continue
            self._down_at = -math.inf
            if read(text) is not None:
                return text, None
            failed = Answer(None, f"{self.where}: its reply cannot be read: {text[-80:]!r}", unreadable=True)
        return "", failed

    def _post(self, body: bytes) -> str:
        """The text of the reply. _Failed where there is none."""
        connection = self._free.get()
        try:
            return self._read(*self._exchange(connection, body))
        except _Failed:
            connection.close()  # whatever state it is in
            raise
        finally:
            self._free.put(connection)

    def _read(self, status: int, reply: bytes) -> str:
        if status != 200:
            final = 400 <= status < 500 and status not in (408, 429)  # asking again is pointless
            raise _Failed(f"{self.where}: HTTP {status} {reply[:100].decode(errors='replace')}", final=final)
        try:
            content = json.loads(reply)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise _Failed(f"{self.where}: the reply is no chat completion") from None
        return content if isinstance(content, str) else ""

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
        kept = connection.sock is not None  # from an earlier request; the other side may have closed it since
        try:
            if not kept:
                connection.connect()
        except OSError as error:
            raise _Failed(f"{self.where} cannot be reached: {error}", down=True) from None
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            if kept and isinstance(error, _STALE):
                connection.close()
                return self._exchange(connection, body)
            raise _Failed(f"{self.where}: {type(error).__name__} {error}") from None

    def _close_idle(self) -> None:
        idle: list[http.client.HTTPConnection] = []
        while not self._free.empty():
            try:
                idle.append(self._free.get_nowait())
            except queue.Empty:  # another thread took it
                break
        for connection in idle:
            connection.close()
            self._free.put(connection)


class _Failed(Exception):
    """One request without a reply. `final`: another try cannot help; `down`: nobody listens there."""

    def __init__(self, reason: str, *, final: bool = False, down: bool = False):
        super().__init__(reason)
        self.final, self.down = final, down


def _authorization(config: JudgeConfig) -> dict[str, str]:
    if not config.key_variable:
        return {}
    key = os.environ.get(config.key_variable)
    if not key:
        raise ConfigError(f"judge.key_variable={config.key_variable!r} is not set; export it, or leave it empty.")
    return {"Authorization": f"Bearer {key}"}
