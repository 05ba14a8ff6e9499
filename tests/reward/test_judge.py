"""The judge's client and server over real sockets: good, malformed, failing, slow and dead judges; the rule."""

import functools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from cascade_jax.config import ConfigError, JudgeConfig
from cascade_jax.reward import judge_server, rule_judge
from cascade_jax.reward.judge import Comparison, Judge, Scores, parse_scores
from launch import serve

MESSAGES = ({"role": "user", "content": "Describe a kite."},)
GOOD = {"score_1": 4, "score_2": 2, "ranking": 2}


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (json.dumps(GOOD), (4, 2, 2)),
        (
            '{x}\n```json\n{"score_1": 1, "score_2": 5, "ranking": 6}\n``` {"score_1": 2, "score_2": 2, "ranking": 3}',
            (1, 5, 6),
        ),
        (
            '{"score_1": 1, "score_2": 1, "ranking": 1} or rather {"score_1": 5, "score_2": 4, "ranking": 2} {"a": 1}',
            (5, 4, 2),
        ),
        ('{"rubric": [{"a": 1}], "overall": {"score_1": "4.5", "score_2": 2, "ranking": 3.5}}', (4.5, 2, 3.5)),
        ('```json\nnot json\n```\n{"score_1": 3, "score_2": 3, "ranking": 4}', (3, 3, 4)),
        ('say "}" {"note": "a } brace", "score_1": 3, "score_2": 3, "ranking": 4} {', (3, 3, 4)),
        ('{"score_1": 6, "score_2": 2, "ranking": 2}', None),
        ('{"score_1": 4, "score_2": 2, "ranking": 0}', None),
        ('{"score_1": true, "score_2": 2, "ranking": 2}', None),
        ('{"score_1": NaN, "score_2": 2, "ranking": 2}', None),
        ('{"score_1": 4, "score_2": 2}', None),
        ("{" * 5000, None),
        ("", None),
    ],
)
def test_parse_scores(text, scores):
    assert parse_scores(text) == (None if scores is None else Scores(*scores))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def served(calls):
    """Serve `replies`, a list of texts or scores that are given in turn, the last one for ever."""

    def serve(*replies):
        def compare(messages, first, second):
            calls.append((tuple(m["role"] for m in messages), first, second))
            return replies[min(len(calls), len(replies)) - 1]

        return judge_server.running(compare)

    return serve


def test_roles_scores_and_memory(served, calls):
    with served(GOOD) as server, Judge(JudgeConfig(url=server.url)) as judge:
        pairs = [
            Comparison(MESSAGES, "a", "b"),
            Comparison(MESSAGES, "a", "b", "Be brief."),
            Comparison(MESSAGES, "a", "b"),
        ]
        judgements = judge.compare(pairs)
        assert [j.scores for j in judgements] == [Scores(4, 2, 2)] * 3
        assert sorted(calls) == [(("user",), "a", "b"), (("user", "principle"), "a", "b")]
        judge.compare(pairs)
        assert len(calls) == 2


def test_many_at_once(served, calls):
    with served(GOOD) as server, Judge(JudgeConfig(url=server.url, concurrency=8)) as judge:
        pairs = [Comparison(MESSAGES, str(i), "b") for i in range(200)]
        assert all(j.scores == Scores(4, 2, 2) for j in judge.compare(pairs))
        assert sorted(call[1] for call in calls) == sorted(map(str, range(200)))


def test_a_malformed_reply_is_asked_again(served, calls):
    with (
        served("let me think", '{"score_1": 9}', GOOD) as server,
        Judge(JudgeConfig(url=server.url, retries=2)) as judge,
    ):
        assert judge.compare([Comparison(MESSAGES, "a", "b")])[0].scores == Scores(4, 2, 2)
        assert len(calls) == 3


def test_no_scores_after_all_retries_is_a_failure_and_not_remembered(served, calls):
    with served("no", "no", GOOD) as server, Judge(JudgeConfig(url=server.url, retries=1)) as judge:
        judgement = judge.compare([Comparison(MESSAGES, "a", "b")])[0]
        assert judgement.scores is None and "no scores" in judgement.failure
        assert judge.compare([Comparison(MESSAGES, "a", "b")])[0].scores == Scores(4, 2, 2)


def test_a_dead_judge_is_given_up_soon_and_for_all():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        start = time.monotonic()
        with Judge(JudgeConfig(url=url, retries=2, concurrency=4)) as judge:
            judgements = judge.compare([Comparison(MESSAGES, str(i), "b") for i in range(100)])
        assert time.monotonic() - start < 5
    assert all(j.scores is None and "cannot be reached" in j.failure for j in judgements)


def test_a_judge_that_comes_back_is_used_again(calls):
    with judge_server.running(lambda *_: GOOD) as server:
        judge = Judge(JudgeConfig(url=server.url, retries=0))
        assert judge.compare([Comparison(MESSAGES, "a", "b")])[0].scores is not None
    port = int(server.url.rsplit(":", 1)[1].removesuffix("/v1"))
    assert judge.compare([Comparison(MESSAGES, "b", "b")])[0].scores is None
    with judge_server.running(lambda *_: GOOD, port=port):
        assert judge.compare([Comparison(MESSAGES, "b", "b")])[0].scores is not None
    judge.__exit__()


@pytest.mark.parametrize(
    ("answer", "requests", "said"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nbusy", 2, "HTTP 500 busy"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 1, "HTTP 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 2, "no chat completion"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", 2, "IncompleteRead"),
        (b"", 2, "RemoteDisconnected"),
        (b"nonsense\r\n\r\n", 2, "BadStatusLine"),
        (None, 2, "timed out"),
    ],
)
def test_servers_that_misbehave(answer, requests, said):
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def misbehave():
            held = []
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                seen.append(connection.recv(65536))
                if answer is None:
                    held.append(connection)
                else:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=misbehave, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Judge(JudgeConfig(url=url, retries=1, timeout=0.5)) as judge:
            judgement = judge.compare([Comparison(MESSAGES, "a", "b")])[0]
        listener.shutdown(socket.SHUT_RDWR)
    assert judgement.scores is None and said in judgement.failure
    assert len(seen) == requests and seen[0].startswith(b"POST /v1/chat/completions")


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://host/v1"])
def test_a_url_that_is_none(url):
    with pytest.raises(ConfigError, match=r"judge\.url"):
        Judge(JudgeConfig(url=url))


def test_the_server_speaks_the_protocol():
    with judge_server.running() as server:
        with urllib.request.urlopen(f"{server.url}/models") as response:
            assert json.load(response)["data"][0]["id"] == "rule-judge"
        for path, body, status in [
            ("models", b"{}", 404),
            ("chat/completions", b"{", 400),
            ("chat/completions", b'{"messages": []}', 400),
        ]:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{server.url}/{path}", data=body)
            assert refused.value.code == status and "message" in json.load(refused.value)["error"]
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(OSError), judge_server.running(port=port):
            pass


def ahead(first, second, ask="Describe a kite."):
    found = rule_judge.compare(({"role": "user", "content": ask},), first, second)
    other = rule_judge.compare(({"role": "user", "content": ask},), second, first)
    assert found["score_1"] == other["score_2"] and found["ranking"] == 7 - other["ranking"]  # no side is favoured
    assert min(found["score_1"], found["score_2"]) >= 1 and max(found["score_1"], found["score_2"]) <= 5
    return found["score_1"] - found["score_2"]


def test_the_rule():
    assert ahead("Sure! A kite flies.", "A kite flies.") > 0  # polite
    assert ahead("A kite flies.", "A plane flies.") > 0  # on the topic
    assert ahead("A kite flies.", "A kite flies high in the wind.") > 0  # short
    assert ahead("Happy to help: a kite.", "kite") > 0  # politeness is worth its words
    assert ahead("(no answer)", "A plane flies.") == 0
    assert ahead("", "Sure, a kite.") < 0
    assert ahead("Surely a kite", "Sure a kite") < 0  # whole words
    assert rule_judge.compare(MESSAGES, "a kite", "a kite")["ranking"] == 3.5
    assert rule_judge.topic_words("Describe kite") == {"kite"} and rule_judge.topic_words(
        "Tell me about the red kite!"
    ) == {"red", "kite"}


def test_the_command_serves_until_it_is_interrupted(capsys):
    command = [sys.executable, "-m", "launch.serve", "--judge", "--port", "0"]
    heeding = functools.partial(
        signal.signal, signal.SIGINT, signal.default_int_handler
    )  # a shell's `&` has it ignored
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, preexec_fn=heeding)
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    url = re.search(r"http://\S+", process.stdout.readline())[0]
    with Judge(JudgeConfig(url=url)) as judge:
        polite, rude = "Sure, a kite flies.", "No."
        assert judge.compare([Comparison(MESSAGES, polite, rude)])[0].scores.score_1 > 4
    port = url.split(":")[2].split("/")[0]
    assert serve.main(["--judge", "--port", port]) == 2 and "choose another" in capsys.readouterr().err
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    watchdog.cancel()
    assert process.returncode == 0 and "Stopped" in out and err == ""
