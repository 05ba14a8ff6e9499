"""The client of judges over real sockets: seeds, draws, memory, concurrency, keys, threads, asyncio, dead endpoints."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cascade_jax.config import ConfigError, JudgeConfig
from cascade_jax.reward.endpoint import Endpoint, Request


class Recorder:
    """Answers every chat request with `reply(body)` (None: HTTP 500); keeps bodies, headers, times, most at once."""

    def __init__(self, reply=lambda body: "yes", seconds=0.0):
        self.bodies, self.headers, self.times, self.now, self.most = [], [], [], 0, 0
        lock = threading.Lock()
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    recorder.bodies.append(body)
                    recorder.headers.append(dict(self.headers))
                    recorder.times.append(time.monotonic())
                    recorder.now += 1
                    recorder.most = max(recorder.most, recorder.now)
                time.sleep(seconds)
                text = reply(body)
                content = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
                with lock:
                    recorder.now -= 1
                self.send_response(500 if text is None else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def question(text, draw=0):
    return Request([{"role": "user", "content": text}], draw)


def yes(reply):
    return reply if reply == "yes" else None


def test_settings_seeds_and_draws():
    config = JudgeConfig(model="m", temperature=0.3, top_p=0.8, max_tokens=99)
    seeds = []
    for _ in range(2):
        with Recorder() as server, Endpoint(JudgeConfig(**{**vars(config), "url": server.url})) as endpoint:
            assert [a.value for a in endpoint.ask_all([question("a"), question("a", 1), question("b")], yes)] == [
                "yes"
            ] * 3
            body = server.bodies[0]
            assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.3, 0.8, 99)
            seeds.append(sorted(body["seed"] for body in server.bodies))
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3


def test_retries_have_other_seeds_and_pauses_that_differ():
    with Recorder(lambda body: None) as server, Endpoint(JudgeConfig(url=server.url, retries=2)) as endpoint:
        answers = endpoint.ask_all([question("a"), question("b")], yes)
        assert all(a.value is None and "HTTP 500" in a.failure and not a.unreadable for a in answers)
        assert len(server.bodies) == 6 and len({body["seed"] for body in server.bodies}) == 6
        by_question = {"a": [], "b": []}
        for seconds, body in zip(server.times, server.bodies, strict=True):
            by_question[body["messages"][0]["content"]].append(seconds)
        first, second = (times[1] - times[0] for times in by_question.values())
        assert abs(first - second) > 0.005 and min(first, second) >= 0.1


def test_a_reply_that_cannot_be_read_is_asked_again_at_once():
    with Recorder(lambda body: "no") as server, Endpoint(JudgeConfig(url=server.url, retries=9)) as endpoint:
        answer = endpoint.ask(question("a"), yes)
        assert answer.value is None and answer.unreadable and len({body["seed"] for body in server.bodies}) == 10
        assert server.times[-1] - server.times[0] < 1


def test_never_more_at_once_than_allowed_however_many_threads_ask():
    with Recorder(seconds=0.02) as server, Endpoint(JudgeConfig(url=server.url, concurrency=3)) as endpoint:
        with ThreadPoolExecutor(12) as executor:
            single = executor.map(lambda i: endpoint.ask(question(f"s{i}"), yes), range(20))
            many = executor.map(lambda i: endpoint.ask_all([question(f"m{i}{k}") for k in range(4)], yes), range(6))
            assert all(a.value == "yes" for a in single) and all(a.value == "yes" for part in many for a in part)
        assert server.most == 3 and len(server.bodies) == 44


def test_threads_that_ask_the_same_share_one_request():
    with Recorder(seconds=0.05) as server, Endpoint(JudgeConfig(url=server.url)) as endpoint:
        with ThreadPoolExecutor(8) as executor:
            assert {a.value for a in executor.map(lambda _: endpoint.ask(question("a"), yes), range(8))} == {"yes"}
        assert len(server.bodies) == 1


def test_from_an_event_loop():
    async def main(endpoint):
        asked = (asyncio.to_thread(endpoint.ask, question(str(i)), yes) for i in range(8))
        return await asyncio.gather(*asked)

    with Recorder() as server, Endpoint(JudgeConfig(url=server.url)) as endpoint:
        assert [a.value for a in asyncio.run(main(endpoint))] == ["yes"] * 8


def test_the_key_is_sent_and_has_to_be_there(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY_OF_TEST", "s3cret")
    with Recorder() as server:
        with Endpoint(JudgeConfig(url=server.url, key_variable="JUDGE_KEY_OF_TEST")) as endpoint:
            endpoint.ask(question("a"), yes)
        assert server.headers[0]["Authorization"] == "Bearer s3cret"
        monkeypatch.delenv("JUDGE_KEY_OF_TEST")
        with pytest.raises(ConfigError, match="is not set; export it"):
            Endpoint(JudgeConfig(url=server.url, key_variable="JUDGE_KEY_OF_TEST"))


def test_a_dead_endpoint_costs_many_threads_little():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        start = time.monotonic()
        with Endpoint(JudgeConfig(url=url, retries=2)) as endpoint, ThreadPoolExecutor(8) as executor:
            answers = list(executor.map(lambda i: endpoint.ask(question(str(i)), yes), range(200)))
        assert time.monotonic() - start < 5
    assert all(a.value is None and "cannot be reached" in a.failure and not a.unreadable for a in answers)


@pytest.mark.parametrize("name", ["timeout", "concurrency", "max_tokens"])
def test_settings_that_cannot_work(name):
    with pytest.raises(ConfigError, match=f"judge.{name}=0"):
        JudgeConfig(**{name: 0})
