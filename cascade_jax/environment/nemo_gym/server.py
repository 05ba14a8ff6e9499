"""Our verifiers and environments as a resources server of NeMo-Gym, for trainers and agents that speak its contract.

POST /seed_session (a row; opens a session, which is a cookie), /{tool} (JSON arguments; the answer is what the tool
says), /verify (the row and `response`; the same and `reward`), /aggregate_metrics. What could not be judged is an error
503 with its reason: a caller that knows no other reward than a number must not take it for 0.
"""

import contextlib
import json
import math
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from cascade_jax.data.rows import parse_row
from cascade_jax.environment.nemo_gym.responses import replies
from cascade_jax.reward.verdict import Verifier
from cascade_jax.rollout.environment import Environment, Observation, Trajectory
from cascade_jax.rollout.host import Broken, Host
from cascade_jax.types import Reply, Row, Sample, ToolCall, Verdict

COOKIE = "session"
IDLE_SECONDS = 3600.0  # after which a session that nobody verified is closed


class Refused(Exception):
    """(status, sentence): what was sent cannot be answered."""


@dataclass
class Session:
    """One episode of a caller's. Its calls follow one another."""

    number: int
    replies: list[Reply] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    broken: Broken | None = None
    used: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> bool:
        return bool(self.observations) and self.observations[-1].done


class Gym:
    """What the server does, without HTTP. `judging`: an environment, or the verifier of answers of one turn."""

    def __init__(self, judging: Verifier | Environment, host: Host) -> None:
        self.environment = judging if hasattr(judging, "episode") else None
        self.verifier = None if self.environment is not None else judging
        self._host, self._sessions, self._opened = host, {}, 0
        self._lock = threading.Lock()

    def seed_session(self, body: Mapping[str, Any]) -> str:
        """The name of a new session, or of none where a verifier needs none."""
        if self.environment is None:
            return secrets.token_hex(16)
        row = _row(body)
        self._close_idle()
        with self._lock:
            session = Session(self._opened)
            self._opened += 1
        seed = body.get("_ng_rollout_index")
        seed = seed if isinstance(seed, int) and seed >= 0 else session.number
        [opening] = self._host.start([(session.number, self.environment, row, seed)])
        if isinstance(opening, Broken):
            self._host.finish([(session.number, self.environment, opening)])
            raise Refused(503, opening.reason)
        name = secrets.token_hex(16)
        with self._lock:
            self._sessions[name] = session
        return name

    def tool(self, name: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the tool says, as text."""
        session = self._session(name)
        with session.lock:
            if session.done:
                return json.dumps({"error": "the episode is over"})
            observation = self._step(session, Reply("", tool_calls=(ToolCall(tool, arguments),)))
        return "\n".join(message["content"] for message in observation.messages)

    def verify(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with `reward`. An environment's session ends with it."""
        row, given = _row(body), body.get("response")
        try:
            said = replies(given.get("output") if isinstance(given, Mapping) else given)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        cut_off = bool(given.get("incomplete_details"))
        verdict = self._verified(row, said, cut_off) if self.environment is None else self._ended(name, said, cut_off)
        if verdict.no_verdict is not None:
            raise Refused(503, f"no verdict: {verdict.no_verdict}")
        return {**body, "reward": verdict.reward, "reward_components": dict(verdict.components)}

    def _verified(self, row: Row, said: list[Reply], cut_off: bool) -> Verdict:
        none = np.zeros(0)
        stop = "length" if cut_off else "stop"
        reply = said[-1] if said else Reply("")
        return self.verifier.verify(
            row, Sample(none.astype(np.int32), none.astype(np.float32), none.astype(bool), stop, 0, reply)
        )

    def _ended(self, name: str, said: list[Reply], cut_off: bool) -> Verdict:
        session = self._session(name)
        with session.lock:
            if session.broken or cut_off or not said:
                stop = "length"
            elif said[-1].tool_calls or session.done:
                stop = "done" if session.done else "turns"
            else:
                stop = "done" if self._step(session, said[-1]).done else "turns"
            if stop == "length" and said:
                session.replies.append(said[-1])
            with self._lock:
                self._sessions.pop(name, None)
            end = Trajectory(tuple(session.replies), tuple(session.observations), stop)
            [verdict] = self._host.finish([(session.number, self.environment, session.broken or end)])
        return verdict

    def _step(self, session: Session, reply: Reply) -> Observation:
        [observation] = self._host.step([(session.number, self.environment, reply)])
        if isinstance(observation, Broken):
            session.broken = observation
            raise Refused(503, observation.reason)
        session.replies.append(reply)
        session.observations.append(observation)
        session.used = time.monotonic()
        return observation

    def _session(self, name: str) -> Session:
        with self._lock:
            if name not in self._sessions:
                raise Refused(400, "this session is not open; POST /seed_session and send the cookie that it sets")
            return self._sessions[name]

    def _close_idle(self) -> None:
        with self._lock:
            late = [n for n, s in self._sessions.items() if time.monotonic() - s.used > IDLE_SECONDS]
            gone = [self._sessions.pop(name) for name in late]
        self._host.finish([(session.number, self.environment, Broken("abandoned")) for session in gone])


def aggregate_metrics(body: Mapping[str, Any]) -> dict[str, Any]:
    """The mean reward of the verified rollouts in `verify_responses`."""
    given = body.get("verify_responses")
    rewards = [item.get("reward") for item in given if isinstance(item, Mapping)] if isinstance(given, list) else []
    known = [float(reward) for reward in rewards if isinstance(reward, (int, float)) and math.isfinite(reward)]
    mean = {"mean/reward": sum(known) / len(known)} if known else {}
    return {"group_level_metrics": [], "agent_metrics": mean, "key_metrics": mean}


@contextlib.contextmanager
def serving(judging: Verifier | Environment, *, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """A bound server on 127.0.0.1, whose `serve_forever` answers; every session is closed at the end.

    `server_address` is (host, port); port 0 takes a free one. OSError: port in use.
    """
    with Host() as host:
        gym = Gym(judging, host)
        server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"gym": gym}))
        try:
            yield server
        finally:
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet
    gym: Gym

    def do_POST(self) -> None:
        cookie, path = None, self.path.partition("?")[0].strip("/")
        try:
            body = self._body()
            if path == "seed_session":
                cookie, answer = self.gym.seed_session(body), "{}"
            elif path == "verify":
                answer = json.dumps(self.gym.verify(self._cookie(), body))
            elif path == "aggregate_metrics":
                answer = json.dumps(aggregate_metrics(body))
            else:
                answer = self._tool(path, body)
            self._send(200, answer, cookie)
        except Refused as error:
            status, reason = error.args
            self._send(status, json.dumps({"error": reason}), None)
        except Exception as error:  # of a verifier: no caller may take it for a 0
            self._send(500, json.dumps({"error": f"{type(error).__name__}: {error}"}), None)

    def log_message(self, *_: Any) -> None:
        """Thousands of requests a step are no news."""

    def _tool(self, path: str, body: Mapping[str, Any]) -> str:
        if self.gym.environment is None or not path:
            raise Refused(404, f"there is no /{path}; there are /seed_session, /verify and /aggregate_metrics")
        return self.gym.tool(self._cookie(), path, body)

    def _body(self) -> dict[str, Any]:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Refused(422, "the body must be a JSON object")
        return body

    def _cookie(self) -> str:
        found = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        return found.value if found is not None else ""

    def _send(self, status: int, text: str, cookie: str | None) -> None:
        data = text.encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if cookie is not None:
            self.send_header("Set-Cookie", f"{COOKIE}={cookie}; Path=/; HttpOnly")
        self.end_headers()
        self.wfile.write(data)


def _row(body: Mapping[str, Any]) -> Row:
    given = {name: value for name, value in body.items() if name != "response" and not name.startswith("_ng_")}
    try:
        return parse_row(given, where="the row")
    except ValueError as error:
        raise Refused(422, str(error)) from None
