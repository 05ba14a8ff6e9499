"""NeMo-Gym's contract over loopback sockets: both sides of it, and servers that are down, late or wrong."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from cascade_jax.config import ConfigError
from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import parse_row, to_record
from cascade_jax.data.tasks import generate, oracle, train_tokenizer, wrong_answers
from cascade_jax.environment.nemo_gym import server as gym
from cascade_jax.environment.nemo_gym.agents import AgentServer, run_agents
from cascade_jax.environment.nemo_gym.resources import ResourcesServer
from cascade_jax.environment.nemo_gym.responses import output_items, record, replies, reply_items, response
from cascade_jax.reward import VERIFIERS
from cascade_jax.rollout.environment import Observation, Trajectory
from cascade_jax.rollout.host import Host
from cascade_jax.types import Prompt, Reply, Sample, ToolCall
from tests.environment.safe import Safe, dials, safe_row
from tests.rollout.countdown import Guessing, guess_row
from tests.rollout.scripted import Scripted, run, says


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


@contextlib.contextmanager
def served(judging):
    with gym.serving(judging) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def answering(answer):
    """A server whose answer(path, body) -> (status, body) | None; None hangs up in the middle."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = answer(self.path, body)
            if given is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, content = given
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(url, path, body, cookie=""):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, json.dumps(body), {"Cookie": cookie})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read()), (answer.headers.get("Set-Cookie") or "").partition(";")[0]
    connection.close()
    return found


SCRIPTS = (
    says(dials(3), dials(5), "It is open."),
    says(dials("x"), "I do not know."),
    says(dials(4, 5), "open"),
    says("open"),
)


def test_an_environment_behind_http_is_the_environment_itself(chat):
    """The same tokens, masks and rewards by both routes, for episodes that run at the same time."""
    here, there = Safe(), Safe()
    [direct] = run(Scripted(chat, *SCRIPTS), chat, here, [safe_row(5)], samples=4, longest=600)
    with served(there) as url:
        [served_] = run(
            Scripted(chat, *SCRIPTS), chat, ResourcesServer(url, turns=5), [safe_row(5)], samples=4, longest=600
        )
    assert [s.verdict.reward for s in direct.samples] == [1.0, 0.0, 1.0, 0.0]
    for one, other in zip(direct.samples, served_.samples, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.mask, other.mask)
        assert one.verdict == other.verdict and one.stop_reason == other.stop_reason
    assert there.opened == there.closed == here.closed == 4


def test_a_verifier_behind_http_is_the_verifier_itself():
    row = generate("mcqa", "test", 1)[0]
    rng = np.random.default_rng(0)
    verifier = VERIFIERS["mcqa"]()
    answers = [oracle(row, rng)["content"], *(m["content"] for m in wrong_answers(row, rng)), ""]
    with served(verifier) as url:
        for text in answers:
            reply = Reply(text)
            said = response(reply_items(reply))
            none = np.zeros(0, np.int32)
            sample = Sample(none, none.astype(np.float32), none.astype(bool), "stop", 0, reply)
            status, body, _ = post(url, "/verify", {**to_record(row), "response": said})
            assert status == 200 and body["reward"] == verifier.verify(row, sample).reward
            assert body["expected_answer"] == row.fields["expected_answer"], "the row comes back with it"
    assert verifier.verify(row, sample).reward == 0.0


def test_what_cannot_be_judged_is_no_reward(chat):
    class Down:
        def verify(self, row, sample):
            raise OSError("the judge is down")

    row = safe_row(5)
    body = {**to_record(row), "response": response(reply_items(Reply("5")))}
    with served(Down()) as url:
        status, answer, _ = post(url, "/verify", body)
        assert status == 500 and "the judge is down" in answer["error"] and "reward" not in answer
        [group] = run(Scripted(chat, says("5")), chat, ResourcesServer(url), [row], longest=600)
        assert "the judge is down" in group.samples[0].verdict.no_verdict
    for call in ("start", "step", "verdict"):
        safe = Safe(fails=call)
        with served(safe) as url:
            [group] = run(Scripted(chat, says(dials(5), "open")), chat, ResourcesServer(url), [row], longest=600)
            assert f"{call} does not work" in group.samples[0].verdict.no_verdict
        assert safe.opened == safe.closed == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/verify", {}, 422, "the row"),
        ("/verify", {**to_record(safe_row(5)), "response": {"output": 3}}, 422, "response.output"),
        ("/verify", {**to_record(safe_row(5)), "response": response(reply_items(Reply("5")))}, 400, "seed_session"),
        ("/dial", {"number": 5}, 400, "seed_session"),
        ("/seed_session", {"expected_answer": []}, 422, "the row"),
        ("/seed_session", [1], 422, "JSON object"),
    ],
)
def test_wrong_requests_get_a_sentence(path, body, status, word):
    with served(Safe()) as url:
        found, answer, _ = post(url, path, body)
        assert found == status and word in answer["error"]


def test_sessions_are_apart_and_end():
    safe = Safe()
    with served(safe) as url:
        record = to_record(safe_row(5))
        cookies = [post(url, "/seed_session", record)[2] for _ in range(3)]
        assert len(set(cookies)) == 3
        assert post(url, "/dial", {"number": 5}, cookies[0])[1] == {"open": True}
        assert post(url, "/dial", {"number": 1}, cookies[1])[1] == {"open": False}
        said = {**record, "response": response(reply_items(Reply("open")))}
        assert [post(url, "/verify", said, cookie)[1]["reward"] for cookie in cookies[:2]] == [1.0, 0.0]
        assert post(url, "/verify", said, cookies[0])[0] == 400, "a session is judged once"
        assert safe.closed == 2
    assert safe.closed == 3, "what nobody verified is closed with the server"


def test_aggregate_metrics():
    with served(Safe()) as url:
        body = {"verify_responses": [{"reward": 1.0}, {"reward": 0.0}, {"reward": None}]}
        assert post(url, "/aggregate_metrics", body)[1]["agent_metrics"] == {"mean/reward": 0.5}


FAULTS = {
    "500": lambda path, body: (500, {"error": "broken inside"}),
    "404": lambda path, body: (404, {"detail": "Not Found"}),
    "no JSON": lambda path, body: (200, b"<html>"),
    "no object": lambda path, body: (200, [1]),
    "hangs up": lambda path, body: None,
    "late": lambda path, body: time.sleep(1) or (200, {"reward": 1.0}),
    "no reward": lambda path, body: (200, {"success": True}),
    "reward is a text": lambda path, body: (200, {"reward": "1"}),
    "reward is NaN": lambda path, body: (200, {"reward": float("nan")}),
    "masked": lambda path, body: (200, {"reward": 1.0, "mask_sample": True}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_at_fault_is_no_verdict(chat, fault):
    def answer(path, body):
        return FAULTS[fault](path, body) if path == "/verify" else (200, {})

    with answering(answer) as url:
        [group] = run(Scripted(chat, says("5")), chat, ResourcesServer(url, seconds=0.3), [safe_row(5)], longest=600)
    verdict = group.samples[0].verdict
    assert np.isnan(verdict.reward) and "/verify" in verdict.no_verdict
    assert ("masked" in verdict.components) == (fault == "masked")


@pytest.mark.parametrize("fault", ["500", "hangs up", "late"])
def test_a_server_that_fails_in_the_middle_is_no_verdict(chat, fault):
    def answer(path, body):
        return FAULTS[fault](path, body) if path == "/dial" else (200, {"reward": 1.0})

    with answering(answer) as url:
        server = ResourcesServer(url, seconds=0.3)
        [group] = run(Scripted(chat, says(dials(5), "open")), chat, server, [safe_row(5)], longest=600)
    assert "/dial" in group.samples[0].verdict.no_verdict and group.samples[0].written > 0


def test_a_server_that_is_not_there_is_no_verdict(chat):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    [group] = run(Scripted(chat, says("5")), chat, ResourcesServer(url), [safe_row(5)], longest=600)
    assert "/seed_session" in group.samples[0].verdict.no_verdict


def test_a_refusal_is_the_tools_answer(chat):
    def answer(path, body):
        return (422, {"detail": "number is missing"}) if path == "/dial" else (200, {"reward": 0.0})

    with answering(answer) as url:
        [group] = run(Scripted(chat, says(dials("x"), "no")), chat, ResourcesServer(url), [safe_row(5)], longest=600)
    [sample] = group.samples
    assert sample.verdict.reward == 0.0
    assert "number is missing" in chat.tokenizer.decode(sample.ids[~sample.mask].tolist())


def test_only_tools_of_the_row_reach_the_server(chat):
    """A model that calls `verify` or another path gets an error to read, and the server no request."""
    paths = []

    def answer(path, body):
        paths.append(path)
        return 200, {"reward": 0.0}

    call = dials(1).replace("=dial>", "={}>")
    tries = says(*(call.format(name) for name in ("verify", "../verify", "other")), "done")
    with answering(answer) as url:
        [group] = run(Scripted(chat, tries), chat, ResourcesServer(url), [safe_row(5)], longest=900)
    assert paths == ["/seed_session", "/verify"] and group.samples[0].turns == 4


def test_what_was_said_survives_the_wire():
    said = (
        Reply("Let me see.", "think", (ToolCall("dial", {"number": 3}), ToolCall("dial", {"number": 4}))),
        Reply("", "", (ToolCall("dial", {"number": 5}),)),
        Reply("done", "more"),
        Reply(""),
    )
    tool = {"role": "tool", "content": "{}", "tool_call_id": ""}
    heard = (Observation((tool, tool)), Observation((tool,)), Observation(({"role": "user", "content": "and?"},)))
    items = output_items(Trajectory(said, heard, "turns"))
    assert replies(json.loads(json.dumps(items))) == list(said)
    ids = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert ids == ["call_0", "call_1", "call_2"]
    assert [item["call_id"] for item in items if item["type"] == "function_call_output"] == ids


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x"])
def test_an_address_that_is_none(url):
    for make in (ResourcesServer, AgentServer):
        with pytest.raises(ConfigError, match="http://host:port"):
            make(url)


def reported(prompt_ids, sample):
    """The output items with which an agent server would report the calls behind a sample."""
    items, segments = [], [(prompt_ids, sample.ids, sample.logprobs, sample.mask)]
    segments += [(s.prompt, s.ids, s.logprobs, s.mask) for s in sample.later]
    for prompt, ids, logprobs, mask in segments:
        before, changes = prompt, np.flatnonzero(np.diff(mask)) + 1
        for part, numbers, written in zip(*(np.split(a, changes) for a in (ids, logprobs, mask)), strict=True):
            if written.all():
                tokens = {
                    "prompt_token_ids": before.tolist(),
                    "generation_token_ids": part.tolist(),
                    "generation_log_probs": numbers.tolist(),
                }
                items.append({**reply_items(Reply("said"))[-1], **tokens})
            else:
                items.append({"type": "function_call_output", "call_id": "call_0", "output": "heard"})
            before = np.concatenate([before, part])
        items.append({"type": "function_call_output", "call_id": "call_0", "output": "heard"})
    return items[:-1]


def agent(url_rows, items, **more):
    return lambda path, body: (200, {**body, "response": response(items), "reward": 1.0, **more})


@pytest.mark.parametrize("thinking", [False, True])
def test_an_agents_tokens_are_put_together_again(chat, thinking):
    """Those of our own loop, cut into calls as an agent server reports them, come back as they were."""
    texts = says("hm</think>9", "oh</think>1", "yes</think>5") if thinking else says("9", "1", "5")
    [group] = run(Scripted(chat, texts), chat, Guessing(), [guess_row(5)], thinking=thinking)
    [sample] = group.samples
    assert len(sample.later) == (2 if thinking else 0)
    with answering(agent(None, reported(group.prompt.ids, sample))) as url:
        prompt = Prompt(np.array([1], np.int32), safe_row(5), "d")
        found = run_agents(AgentServer(url), [prompt] * 2, samples_per_prompt=3, version=4)
    assert found.delivered_fraction == 1.0 and [len(g.samples) for g in found.groups] == [3, 3]
    for rebuilt in found.groups[1].samples:
        np.testing.assert_array_equal(found.groups[1].prompt.ids, group.prompt.ids)
        for name in ("ids", "logprobs", "mask"):
            np.testing.assert_array_equal(getattr(rebuilt, name), getattr(sample, name))
            for one, other in zip(rebuilt.later, sample.later, strict=True):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert rebuilt.version == 4 and rebuilt.verdict.reward == 1.0 and rebuilt.turns == 3


def bundle(prompt, ids, logprobs=None):
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": ids}
    logprobs = [-1.0] * len(ids) if logprobs is None else logprobs
    return {**reply_items(Reply("x"))[0], **tokens, "generation_log_probs": logprobs}


HEARD = {"type": "function_call_output", "call_id": "c", "output": "y"}


def rollout(items, **more):
    with answering(agent(None, items, **more)) as url:
        prompt = Prompt(np.array([1], np.int32), safe_row(5), "d")
        found = run_agents(AgentServer(url), [prompt], samples_per_prompt=1, version=0)
    return found.groups[0].prompt.ids.tolist(), found.groups[0].samples[0], found.delivered_fraction


def test_a_rewritten_history_is_a_segment_of_its_own():
    items = [bundle([1, 2], [3]), HEARD, bundle([1, 2, 9], [4]), HEARD, bundle([1, 2, 9, 4, 5], [6, 7])]
    prompt, sample, fraction = rollout(items)
    assert prompt == [1, 2] and sample.ids.tolist() == [3] and fraction == 1.0
    [later] = sample.later
    assert later.prompt.tolist() == [1, 2, 9] and later.ids.tolist() == [4, 5, 6, 7]
    assert later.mask.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    "items",
    [
        [],
        reply_items(Reply("only text")),
        [bundle([1, 2], [3]), HEARD, *reply_items(Reply("a call without tokens"))],
        [bundle([1, 2], [3], [-1.0, -1.0])],
        [bundle([1, 2], [3], [-9999.0])],
        [bundle([1, 2], [3], [float("nan")])],
        [bundle([1, 2], [-3])],
        [bundle([], [3])],
    ],
)
def test_a_rollout_without_all_its_tokens_is_not_trained(items):
    _, sample, fraction = rollout(items)
    assert sample.verdict.no_verdict and np.isnan(sample.verdict.reward)
    assert sample.written == 0 and sample.later == () and fraction == 0.0


@pytest.mark.parametrize("fault", FAULTS)
def test_an_agent_server_at_fault_is_no_verdict(fault):
    with answering(FAULTS[fault]) as url:
        prompt = Prompt(np.array([1], np.int32), safe_row(5), "d")
        found = run_agents(AgentServer(url, seconds=0.3), [prompt], samples_per_prompt=2, version=0)
    assert found.delivered_fraction == 0.0
    for sample in found.groups[0].samples:
        assert np.isnan(sample.verdict.reward) and "/run" in sample.verdict.no_verdict


def test_the_command_serves_until_it_is_stopped():
    command = [sys.executable, "-m", "launch.serve", "--environment", "mcqa"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split(" at ")[1].split()[0]
        row = generate("mcqa", "test", 1)[0]
        answer = oracle(row, np.random.default_rng(0))["content"]
        body = {**to_record(row), "response": response(reply_items(Reply(answer)))}
        assert post(url, "/verify", body)[1]["reward"] == 1.0
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_host_is_used_by_many_threads_at_once():
    """As the server does, whose requests come from threads of their own."""
    safe, found = Safe(), []
    with Host() as host:

        def one(number):
            host.start([(number, safe, safe_row(number), 0)])
            host.step([(number, safe, Reply("", tool_calls=(ToolCall("dial", {"number": number}),)))])
            found.extend(host.finish([(number, safe, Trajectory((Reply("open"),), (), "done"))]))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [verdict.reward for verdict in found] == [1.0] * 19 and safe.closed == 19


def test_what_is_sent_has_every_field_that_the_contract_requires():
    """As the models of NeMo-Gym 0.4.0 have it: the fields without a default of a Response, its items and its tools."""
    row = safe_row(5)
    sent = record(row)
    assert parse_row(sent, where="x") == row
    said = (Reply("a", "b", (ToolCall("dial", {"number": 3}),)), Reply("c"))
    tool = {"role": "tool", "content": "{}", "tool_call_id": ""}
    whole = response(output_items(Trajectory(said, (Observation((tool,)),), "done")), tools=row.tools)
    assert {"id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools"} <= set(
        whole
    )
    for one in (*whole["tools"], *sent["responses_create_params"]["tools"]):
        assert {"type", "name", "parameters", "strict"} <= set(one)
    needed = {
        "reasoning": {"id", "summary"},
        "message": {"id", "content", "role", "status"},
        "function_call": {"arguments", "call_id", "name"},
        "function_call_output": {"call_id", "output"},
    }
    assert [item["type"] for item in whole["output"]] == [*needed, "message"]
    for item in whole["output"]:
        assert needed[item["type"]] <= set(item)
