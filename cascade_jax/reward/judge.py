"""A client of judges behind an OpenAI-compatible endpoint, in the GenRM convention: two answers in, scores out.

The candidates are messages of the roles `response_1` and `response_2` after the conversation; the reply holds JSON with
`score_1` and `score_2` (1 to 5) and `ranking` (1: the first is far better, 6: the second is).
"""

import hashlib
import http.client
import json
import queue
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from cascade_jax.config import ConfigError, JudgeConfig

SAMPLING = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 16_384}  # GenRM's own
_PAUSE = 0.2  # seconds before the first retry; doubles
_CACHED = 65_536  # comparisons
_FENCED = re.compile(r"```json\s*(.*?)```", re.DOTALL | re.IGNORECASE)


class Scores(NamedTuple):
    score_1: float
    score_2: float
    ranking: float


class Comparison(NamedTuple):
    """One question to the judge. `principle` (may be empty) tells it what to prefer."""

    messages: tuple[Mapping[str, Any], ...]
    response_1: str
    response_2: str
    principle: str = ""


class Judgement(NamedTuple):
    """`scores`, or None and the reason why the judge gave none."""

    scores: Scores | None
    failure: str = ""


class Judge:
    """Compares pairs, many at a time. Equal comparisons are asked once and remembered. A context manager.

    ConfigError: a url that is not http(s)://host[:port][/path].
    """

    def __init__(self, config: JudgeConfig):
        address = urllib.parse.urlsplit(config.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"judge.url={config.url!r} is not an address; give it as http://host:port/v1.")
        path = address.path.rstrip("/")
        self._config = config
        self._path = (path if path.endswith("/v1") else f"{path}/v1") + "/chat/completions"
        self._where = f"judge at {address.scheme}://{address.netloc}{self._path}"
        # The standard library's client costs a fifth of httpx per request, and a demo step makes 448 of them.
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._connections = [kind(address.netloc, timeout=config.timeout) for _ in range(config.concurrency)]
        self._free: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()
        for connection in self._connections:
            self._free.put(connection)
        self._executor = ThreadPoolExecutor(config.concurrency, thread_name_prefix="judge-client")
        self._remembered: dict[str, Judgement] = {}

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    def compare(self, comparisons: Sequence[Comparison]) -> list[Judgement]:
        """One judgement per comparison. Failures are retried, then reported, never replaced by a default."""
        bodies = [self._body(comparison) for comparison in comparisons]
        keys = [hashlib.sha256(body).hexdigest() for body in bodies]
        new = {key: body for key, body in zip(keys, bodies, strict=True) if key not in self._remembered}
        unreachable: list[str] = []  # once a judge is known to be down, what still waits does not wait for it
        answers = self._executor.map(lambda item: self._ask(item[0], item[1], unreachable), new.items())
        fresh = dict(zip(new, answers, strict=True))
        for connection in self._connections:  # until the next step, the other side would have given them up
            connection.close()
        judgements = [fresh[key] if key in fresh else self._remembered[key] for key in keys]
        self._remembered |= {key: judgement for key, judgement in fresh.items() if judgement.scores is not None}
        while len(self._remembered) > _CACHED:
            del self._remembered[next(iter(self._remembered))]
        return judgements

    def _body(self, comparison: Comparison) -> bytes:
        extra = [{"role": "principle", "content": comparison.principle}] if comparison.principle else []
        messages = [
            *({"role": m["role"], "content": m["content"]} for m in comparison.messages),
            {"role": "response_1", "content": comparison.response_1},
            {"role": "response_2", "content": comparison.response_2},
            *extra,
        ]
        return json.dumps({"model": self._config.model, "messages": messages, **SAMPLING}).encode()

    def _ask(self, key: str, body: bytes, unreachable: list[str]) -> Judgement:
        failure, down = "", False
        for attempt in range(1 + self._config.retries):
            if unreachable:
                return Judgement(None, unreachable[0])
            if attempt:
                time.sleep(_PAUSE * 2 ** (attempt - 1))
            # The seed depends on the question and the attempt alone, so that a run that is repeated asks the same.
            seed = (int(key[:8], 16) + attempt) % 2**31
            try:
                scores = parse_scores(self._post(body[:-1] + f', "seed": {seed}}}'.encode()))
            except _Failed as error:
                failure, down = str(error), error.down
                if error.final:
                    return Judgement(None, failure)
                continue
            if scores is not None:
                return Judgement(scores)
            failure, down = f"{self._where}: no scores in its reply", False
        if down:
            unreachable.append(failure)
        return Judgement(None, failure)

    def _post(self, body: bytes) -> str:
        """The text of the judge's reply. _Failed where there is none."""
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
            raise _Failed(f"{self._where}: HTTP {status} {reply[:100].decode(errors='replace')}", final=final)
        try:
            content = json.loads(reply)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise _Failed(f"{self._where}: the reply is no chat completion") from None
        return content if isinstance(content, str) else ""

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
        try:
            if connection.sock is None:
                connection.connect()
        except OSError as error:
            raise _Failed(f"{self._where} cannot be reached: {error}", down=True) from None
        try:
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"{self._where}: {type(error).__name__} {error}") from None


class _Failed(Exception):
    """One request without a reply. `final`: another try cannot help; `down`: nobody listens there."""

    def __init__(self, reason: str, *, final: bool = False, down: bool = False):
        super().__init__(reason)
        self.final, self.down = final, down


def parse_scores(text: str) -> Scores | None:
    """The first fenced JSON with scores, else the last object with scores anywhere; None where neither is."""
    for block in _FENCED.findall(text):
        for found in _objects(block):
            scores = _scores(found)
            if scores is not None:
                return scores
    everywhere = [_scores(found) for found in _objects(text)]
    return next((scores for scores in reversed(everywhere) if scores is not None), None)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects in running text, in order."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield found
        start = text.find("{", end)


def _scores(found: Mapping[str, Any]) -> Scores | None:
    overall = found.get("overall")
    values = overall if isinstance(overall, Mapping) else found
    numbers = [_number(values.get(name), high) for name, high in (("score_1", 5), ("score_2", 5), ("ranking", 6))]
    return None if None in numbers else Scores(*numbers)


def _number(value: Any, high: int) -> float | None:
    """A number from 1 to `high`, also as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 1 <= number <= high else None
