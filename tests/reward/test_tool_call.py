"""Single-step tool calls: names, arguments, batches in any order, and formats that are refused."""

import json
import math

import pytest

from cascade_jax.reward.tool_call import ToolCalls, same_value
from cascade_jax.types import ToolCall

ADD = {"type": "function_call", "name": "add", "arguments": json.dumps({"a": 1, "b": [2, 3], "unit": {"name": "kg"}})}
GOOD = ToolCall("add", {"b": [2, 3.0], "unit": {"name": "kg"}, "a": 1})


@pytest.mark.parametrize(
    ("calls", "reward"),
    [
        ([GOOD], 1),
        ([], 0),
        ([GOOD, GOOD], 0),
        ([ToolCall("sum", GOOD.arguments)], 0),
        ([ToolCall("add", {**GOOD.arguments, "a": 2})], 0),
        ([ToolCall("add", {**GOOD.arguments, "a": "1"})], 0),
        ([ToolCall("add", {**GOOD.arguments, "a": True})], 0),
        ([ToolCall("add", {**GOOD.arguments, "extra": 1})], 0),
        ([ToolCall("add", {**GOOD.arguments, "b": [3, 2]})], 0),
        ([ToolCall("add", {"a": 1})], 0),
    ],
)
def test_one_call(row, sample, calls, reward):
    assert ToolCalls().verify(row(expected_action=ADD), sample("text", *calls)).reward == reward


def test_parsed_arguments_are_the_same_as_text(row, sample):
    parsed = {**ADD, "arguments": json.loads(ADD["arguments"])}
    assert ToolCalls().verify(row(expected_action=parsed), sample("", GOOD)).reward == 1.0


def test_a_batch_is_a_multiset(row, sample):
    f = [ToolCall("f", {"x": x}) for x in (1, 2)]
    expected = {"type": "function_call_batch", "calls": [{"name": "f", "arguments": {"x": x}} for x in (1, 1, 2)]}
    asked = row(expected_action=expected)
    for calls, strict, f1 in [
        ([f[1], f[0], f[0]], 1.0, 1.0),
        ([f[0], f[1], f[1]], 0.0, 2 / 3),
        ([f[0]], 0.0, 2 / 4),
        ([f[0], f[0], f[1], f[1]], 0.0, 6 / 7),
        ([f[1]] * 20, 0.0, 2 / 23),
    ]:
        assert ToolCalls().verify(asked, sample("", *calls)).reward == strict
        assert math.isclose(ToolCalls(grading="f1").verify(asked, sample("", *calls)).reward, f1)


def test_a_message_is_expected(row, sample):
    asked = row(expected_action={"type": "message", "content": "hello"})
    assert ToolCalls().verify(asked, sample("I cannot call that.")).reward == 1.0
    assert ToolCalls().verify(asked, sample("text", GOOD)).reward == 0.0
    assert ToolCalls().verify(asked, sample("")).reward == 0.0


def test_a_malformed_reply_earns_nothing(row, sample):
    verdict = ToolCalls().verify(row(expected_action=ADD), sample("", GOOD, malformed="stray </tool_call>"))
    assert verdict.reward == 0.0 and "stray" in verdict.info["reason"]


@pytest.mark.parametrize(
    "action",
    [
        None,
        {},
        {"type": "call"},
        {"type": "function_call", "name": "f"},
        {"type": "function_call", "name": "f", "arguments": "{"},
        {"type": "function_call", "name": "f", "arguments": "[1]"},
        {"type": "function_call_batch", "calls": []},
    ],
)
def test_a_bad_row_is_no_verdict(row, sample, action):
    assert ToolCalls().verify(row(expected_action=action), sample("", GOOD)).no_verdict is not None


def test_same_value():
    assert same_value({"a": " x "}, {"a": "x"}) and not same_value("X", "x") and same_value("X", "x", ignore_case=True)
    assert same_value(1, 1.0) and not same_value(1, True) and not same_value(0, False) and not same_value(None, 0)
    assert same_value([], []) and not same_value([], {}) and same_value(None, None)
