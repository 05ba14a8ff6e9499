"""BFCL: its gold calls pass by its own checker, broken ones fail, in one turn and in several."""

import dataclasses
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cascade_jax.data.messages import parse_messages
from cascade_jax.types import Reply, Row, Sample, ToolCall
from evals.bfcl import ANY_CALL, CATEGORIES, IMPOSSIBLE, NO_CALL, Bfcl, rows
from tests.evals.bfcl_gold import gold_calls

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason="needs pip install --no-deps bfcl-eval==2026.3.23"
)
ITEMS = {"irrelevance": 240, "live_irrelevance": 884, "live_relevance": 16, "live_multiple": 1053, "live_simple": 258}
ITEMS |= {"live_parallel": 16, "live_parallel_multiple": 24, "simple_python": 400, "simple_java": 100}
ITEMS |= {"simple_javascript": 50, "multiple": 200, "parallel": 200, "parallel_multiple": 200}
AST = [category for category in CATEGORIES if category not in (*NO_CALL, *ANY_CALL)]


def sample(*calls, content="", malformed=None):
    reply = Reply(content, "", tuple(calls), malformed)
    return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, reply)


def reward(row, *calls, content=""):
    verdict = Bfcl().verify(row, sample(*calls, content=content))
    assert verdict.no_verdict is None
    return verdict.reward


def test_all_items_are_there_with_tools_in_json_schema():
    assert set(ITEMS) == set(CATEGORIES)
    for category, count in ITEMS.items():
        found = rows([category])
        assert len(found) == len({row.id for row in found}) == count
        for row in found:
            assert row.kind == "bfcl" and parse_messages(list(row.messages)) == row.messages
            assert row.tools or category == "live_irrelevance"
            types = {declared["type"] for tool in row.tools for declared in _all_types(tool["function"]["parameters"])}
            assert types <= {"object", "array", "string", "integer", "number", "boolean"}
    with pytest.raises(ValueError, match="no single-turn category web_search"):
        rows(["web_search"])


def _all_types(schema):
    if "type" in schema:
        yield schema
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from _all_types(inner)


@pytest.mark.parametrize("category", AST)
def test_gold_calls_pass(category):
    failing = {row.id for row in rows([category]) if reward(row, *gold_calls(row)) != 1.0}
    assert failing == {name for name in IMPOSSIBLE if name.rsplit("_", 1)[0] == category}


@pytest.mark.parametrize("category", AST)
def test_broken_calls_fail(category):
    for row in rows([category])[:60]:
        *others, last = gold_calls(row)
        broken = {
            "none": [],
            "one less": others,
            "one more": [*others, last, last],
            "another tool": [*others, ToolCall(last.name + "s", last.arguments)],
            "another argument": [*others, ToolCall(last.name, {**last.arguments, "and_more": "1"})],
            "other values": [*others, ToolCall(last.name, {k: _other(v) for k, v in last.arguments.items()})],
            "other types": [*others, ToolCall(last.name, {k: {"x": [v]} for k, v in last.arguments.items()})],
        }
        for what, calls in broken.items():
            if what.startswith("other ") and not last.arguments:
                continue
            assert reward(row, *calls) == 0.0, (row.id, what, calls)
        assert Bfcl().verify(row, sample(*others, last, malformed="a leftover tool tag")).reward == 0.0


def _other(value):
    if isinstance(value, bool):
        return "perhaps"
    if isinstance(value, (int, float)):
        return value + 12_345
    return [_other(v) for v in value] + ["zz"] if isinstance(value, list) else f"zz {value}"


def test_where_no_tool_fits_none_may_be_called_and_where_one_does_some_must():
    for category in NO_CALL:
        row = rows([category])[0]
        call = ToolCall(row.tools[0]["function"]["name"], {})
        assert [reward(row, content="None fits."), reward(row, call), reward(row)] == [1.0, 0.0, 0.0]
    row = rows(ANY_CALL)[0]
    call = ToolCall(row.tools[0]["function"]["name"], {})
    assert [reward(row, content="None fits."), reward(row, call)] == [0.0, 1.0]


def test_the_checker_is_called_from_threads_and_leaves_no_stand_in_behind():
    found = rows(["parallel"])
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda row: reward(row, *gold_calls(row)), found)) == {1.0}
    assert "bfcl_eval.constants.model_config" not in sys.modules


def test_a_sample_that_was_not_read_is_no_verdict():
    row = rows(["simple_python"])[0]
    assert Bfcl().verify(row, dataclasses.replace(sample(), reply=None)).no_verdict is not None
    assert isinstance(row, Row)
