"""BFCL in several turns: its gold calls pass by its own checker, broken ones fail, and no episode leaves a service."""

import asyncio
import importlib.util

import pytest

from cascade_jax.data.messages import parse_messages
from cascade_jax.rollout.environment import Trajectory
from cascade_jax.types import Reply, ToolCall
from evals.bfcl_turns import CATEGORIES, IMPOSSIBLE, BfclTurns, rows
from tests.evals.bfcl_gold import gold_turns

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason="needs pip install --no-deps bfcl-eval==2026.3.23"
)


def play(row, requests, *, together=True):
    """All observations and the verdict. The calls of a request stand in one reply, or each in one of its own."""

    async def episode():
        one = BfclTurns().episode(row, seed=0)
        opening = await one.start()
        assert opening.messages == row.messages and opening.tools == row.tools
        replies, seen = [], []
        for calls in requests:
            turns = [calls] if together else [[call] for call in calls]
            for turn in [*(turn for turn in turns if turn), []]:
                replies.append(Reply("" if turn else "Done.", tool_calls=tuple(turn)))
                seen.append(await one.step(replies[-1]))
                if seen[-1].done:
                    break
        verdict = await one.verdict(Trajectory(tuple(replies), tuple(seen), "done" if seen[-1].done else "turns"))
        await one.close()
        return seen, verdict

    return asyncio.run(episode())


def left_behind():
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    return [name for name in vars(multi_turn_utils) if name.startswith("episode")]


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_calls_pass_and_leave_nothing(category):
    found = rows([category])
    assert len(found) == 200
    for row in found[:: 1 if category == "multi_turn_miss_func" else 4]:
        seen, verdict = play(row, gold_turns(row))
        assert seen[-1].done and not seen[-1].messages
        assert (verdict.reward, verdict.no_verdict) == (float(row.id not in IMPOSSIBLE), None), (row.id, verdict)
        assert parse_messages(list(row.messages)) == row.messages
    assert left_behind() == []


@pytest.mark.parametrize("category", CATEGORIES)
def test_broken_calls_fail(category):
    for row in rows([category])[::20]:
        gold = gold_turns(row)
        last = max(i for i, calls in enumerate(gold) if calls)
        broken = [
            [[] for _ in gold],
            [*gold[:last], gold[last][:-1], *gold[last + 1 :]],
            [*gold[:last], [ToolCall("exit", {}), ToolCall("no_such_tool", {})], *gold[last + 1 :]],
            [*gold[:last], [ToolCall(call.name, {"x; y": 1}) for call in gold[last]], *gold[last + 1 :]],
            gold[:last],
        ]
        for requests in broken:
            assert play(row, requests)[1].reward == 0.0
    assert left_behind() == []


def test_one_call_a_turn_is_as_good_up_to_the_limit():
    row, long = rows(["multi_turn_base"])[0], rows(["multi_turn_long_context"])[38]
    assert play(row, gold_turns(row), together=False)[1].reward == 1.0
    verdict = play(long, gold_turns(long), together=False)[1]
    assert verdict.reward == 0.0 and "20 turns" in verdict.info["reason"]
    assert play(long, gold_turns(long))[1].reward == 1.0


def test_tools_that_come_later_are_refused_before_and_described_when_they_come():
    row = next(row for row in rows(["multi_turn_miss_func"]) if row.id == "multi_turn_miss_func_0")
    late = ToolCall("sort", {"file_name": "final_report.pdf"})
    assert "sort" not in [tool["function"]["name"] for tool in row.tools]
    seen = play(row, [[late], [], [], [late], []])[0]
    assert seen[0].messages[0]["content"] == "Error: there is no such call"
    told = [
        m["content"] for one in seen for m in one.messages if m["role"] == "user" and '"name": "sort"' in m["content"]
    ]
    assert len(told) == 1
    results = [m["content"] for one in seen for m in one.messages if m["role"] == "tool"]
    assert len(results) == 2 and "no such call" not in results[1]


def test_arguments_are_literals_and_never_code(tmp_path):
    """BFCL evaluates calls as Python text; what a model writes into them must stay text."""
    row = rows(["multi_turn_base"])[0]
    target = tmp_path / "written"
    attacks = [
        ToolCall("mkdir", {"dir_name": f"x'); open({str(target)!r}, 'w')  #"}),
        ToolCall("mkdir", {f"dir_name=open({str(target)!r}, 'w'), y": 1}),
        ToolCall(f"open({str(target)!r}, 'w') or mkdir", {"dir_name": "x"}),
        ToolCall("mkdir", {"dir_name": {"a": [f"__import__('os').mkdir({str(target)!r})"]}}),
    ]
    seen, verdict = play(row, [attacks])
    assert len(seen[0].messages) == len(attacks) and verdict.reward == 0.0
    assert not target.exists()


def test_sums_that_would_take_for_ever_are_refused():
    row = next(row for row in rows(["multi_turn_base"]) if "MathAPI" in row.fields["item"]["involved_classes"])
    calls = [
        ToolCall("power", {"base": 10, "exponent": 10**10}),
        ToolCall("logarithm", {"value": 2, "base": 10, "precision": 10**9}),
        ToolCall("power", {"base": 2, "exponent": 10}),
    ]
    results = [message["content"] for message in play(row, [calls])[0][0].messages]
    assert results == ["Error: there is no such call"] * 2 + ['{"result": 1024}']
