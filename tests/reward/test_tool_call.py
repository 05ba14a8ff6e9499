"""Single-step tool calls: names, arguments, batches in any order, and formats that are refused."""

import itertools
import json
import math

import pytest

from cascade_jax.reward.tool_call import ToolCalls, matching, same_value
from cascade_jax.types import Row, ToolCall

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
        ([f[1]] * 25, 0.0, 0.0),
    ]:
        assert ToolCalls().verify(asked, sample("", *calls)).reward == strict
        assert math.isclose(ToolCalls(grading="f1").verify(asked, sample("", *calls)).reward, f1)


def test_spamming_every_guess_earns_nothing(row, sample):
    guesses = [ToolCall("f", {"x": x}) for x in range(30)]
    asked = row(expected_action={"type": "function_call", "name": "f", "arguments": {"x": 7}})
    for grading in ("strict", "f1"):
        assert ToolCalls(grading=grading).verify(asked, sample("", *guesses)).reward == 0.0
        assert ToolCalls(grading=grading).verify(asked, sample("", guesses[7])).reward == 1.0


def test_numbers_close_to_each_other_are_matched_as_well_as_they_can_be(row, sample):
    """a fits both calls, b only the first: taking the first fit for a would leave b without a partner."""
    a, b, first, second = 1.0, 1.0 - 1.5e-9, 1.0 - 0.8e-9, 1.0 + 0.8e-9
    assert same_value(a, first) and same_value(a, second) and same_value(b, first) and not same_value(b, second)
    expected = [{"name": "f", "arguments": {"x": x}} for x in (a, b)]
    made = [ToolCall("f", {"x": x}) for x in (first, second)]
    asked = row(expected_action={"type": "function_call_batch", "calls": expected})
    assert ToolCalls().verify(asked, sample("", *made)).reward == 1.0


@pytest.mark.parametrize("edges", [[[0, 1], [0], []], [[0, 1, 2], [0, 2], [0, 1]], [[3], [3], [3, 0], [0, 1], [1, 2]]])
def test_matching_is_the_largest(edges):
    made = range(4)
    best = max(
        sum(j in edges[i] for i, j in enumerate(order) if i < len(edges))
        for order in itertools.permutations([*made, None, None, None])
    )
    assert matching(range(len(edges)), made, lambda i, j: j in edges[i]) == best


def test_declared_defaults_count_as_given(sample):
    properties = {"city": {"type": "string"}, "unit": {"type": "string", "default": "C"}, "days": {"type": "integer"}}
    tool = {"name": "f", "parameters": {"type": "object", "properties": properties, "required": ["city"]}}
    paris = {"city": "Paris"}

    def reward(expected, made):
        action = {"type": "function_call", "name": "f", "arguments": expected}
        asked = Row("row", "tool_call", (), ({"type": "function", "function": tool},), {"expected_action": action})
        return ToolCalls().verify(asked, sample("", ToolCall("f", made))).reward

    for other in ({**paris, "unit": "C"}, {**paris, "unit": None}, {**paris, "days": None}):
        assert reward(paris, other) == reward(other, paris) == 1.0
    for other in ({**paris, "unit": "F"}, {**paris, "days": 0}, {**paris, "wind": None}, {"city": None}):
        assert reward(paris, other) == reward(other, paris) == 0.0


@pytest.mark.parametrize("text", ["<tool_call>", "ok </tool_call>", "<function=add>", "so </think>", "<think> so"])
def test_tags_left_in_the_text_break_the_format(row, sample, text):
    for asked in (row(expected_action=ADD), row(expected_action={"type": "message"})):
        for calls in ([], [GOOD]):
            assert ToolCalls().verify(asked, sample(text, *calls)).reward == 0.0
            verdict = ToolCalls(malformed_penalty=0.5).verify(asked, sample(text, *calls))
            assert verdict.reward == -0.5 and verdict.components["malformed"] == 1.0
    assert ToolCalls(malformed_penalty=0.5).verify(row(expected_action=ADD), sample("", GOOD)).reward == 1.0


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
    assert same_value(0.1 + 0.2, 0.3) and not same_value(10**30, 10**30 + 1) and not same_value(10**400, 1.0)
    assert same_value([], []) and not same_value([], {}) and same_value(None, None)
