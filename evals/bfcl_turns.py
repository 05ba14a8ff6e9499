"""The multi-turn part of BFCL v4 as an environment: small services with a state, several requests of a user.

The services, the items and the checker are those of the package bfcl-eval (see `evals.bfcl`). The assistant calls as
often as it likes, up to BFCL's 20 times, before it answers; the answer brings the user's next request. At the end the
checker runs all calls again beside the right ones and compares states and results after each request.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_jax.reward.tool_call import format_fault
from cascade_jax.reward.verdict import wrong
from cascade_jax.rollout.environment import Observation, Opening, Trajectory
from cascade_jax.types import Reply, Row, ToolCall, Verdict
from evals.bfcl import records, tool_of

CATEGORIES = tuple(f"multi_turn_{name}" for name in ("base", "miss_func", "miss_param", "long_context"))
IMPOSSIBLE = ("multi_turn_miss_func_49",)  # asks for a tool before it is there; the published scores include it
_STEPS = 20  # calls in a row that BFCL allows before it takes the item as failed
_COSTLY = ("power", "logarithm", "square_root")  # as exact as is asked for: large arguments would take for ever
_LARGEST = 10_000  # argument of these
_names = itertools.count()  # BFCL keeps the state of an episode under the name of a model


def rows(categories: Sequence[str] = CATEGORIES) -> list[Row]:
    """Rows of kind "bfcl_turns" with the fields category, item (without its tools) and ground_truth.

    ModuleNotFoundError: bfcl-eval is not installed. ValueError: a category that is not here.
    """
    unknown = sorted(set(categories) - set(CATEGORIES))
    if unknown:
        raise ValueError(f"BFCL has no multi-turn category {', '.join(unknown)}; choose from {', '.join(CATEGORIES)}.")
    found = []
    for category in categories:
        answers = {
            answer["id"]: answer["ground_truth"] for answer in records(f"possible_answer/BFCL_v4_{category}.json")
        }
        for item in records(f"BFCL_v4_{category}.json"):
            fields = {"category": category, "item": item, "ground_truth": answers[item["id"]]}
            late = {name for names in item.get("missed_function", {}).values() for name in names}
            tools = tuple(tool for tool in _tools(item) if tool["function"]["name"] not in late)
            found.append(Row(item["id"], "bfcl_turns", tuple(item["question"][0]), tools, fields))
    return found


@dataclass(frozen=True)
class BfclTurns:
    """1 where BFCL's checker accepts the calls of every request, else 0. For rows of `rows`."""

    turns: int = 8 * (_STEPS + 1)  # the longest items have 8 requests
    resources: tuple[str, ...] = ()

    def episode(self, row: Row, *, seed: int) -> "BfclEpisode":
        """The services are the same for every seed."""
        return BfclEpisode(row)


class BfclEpisode:
    """One try at one row, with services of its own."""

    def __init__(self, row: Row) -> None:
        self._row, self._item = row, row.fields["item"]
        self._name = f"episode{next(_names)}"
        self._offered = {tool["function"]["name"] for tool in row.tools}
        self._requests: list[list[list[str]]] = [[]]  # for each request so far the calls of each turn, as Python
        self._calls = 0
        self._fault: str | None = None

    async def start(self) -> Opening:
        """The first request, with the tools that are there from the start."""
        return Opening(self._row.messages, self._row.tools)

    async def step(self, reply: Reply) -> Observation:
        """Results of the calls or, after an answer, the next request; done where there is none."""
        self._fault = self._fault or format_fault(reply)
        if self._fault is None and reply.tool_calls and len(self._requests[-1]) >= _STEPS:
            self._fault = f"more than {_STEPS} turns with calls for one request"
        if self._fault is not None:
            return Observation(done=True)
        if reply.tool_calls:
            return Observation(self._results(reply.tool_calls))
        number = len(self._requests)
        if number == len(self._item["question"]):
            return Observation(done=True)
        self._requests.append([])
        return Observation((*self._item["question"][number], *self._new_tools(number)))

    def _results(self, calls: Sequence[ToolCall]) -> tuple[dict[str, Any], ...]:
        written = [_written(call, self._offered) for call in calls]
        self._requests[-1].append([text for text in written if text is not None])
        results = iter(self._run(self._requests[-1][-1]))
        contents = ["Error: there is no such call" if text is None else next(results) for text in written]
        first, self._calls = self._calls, self._calls + len(calls)
        return tuple(
            {"role": "tool", "content": content, "tool_call_id": f"call_{first + i}"}
            for i, content in enumerate(contents)
        )

    def _run(self, calls: list[str]) -> list[str]:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        long = "long_context" in self._row.fields["category"]
        config, classes = self._item["initial_config"], self._item["involved_classes"]
        return execute_multi_turn_func_call(calls, config, classes, self._name, self._item["id"], long)[0]

    def _new_tools(self, number: int) -> tuple[dict[str, Any], ...]:
        """Tools that come with this request, described in the user's text as BFCL does for models that prompt."""
        names = self._item.get("missed_function", {}).get(str(number), ())
        if not names:
            return ()
        self._offered |= set(names)
        described = [tool["function"] for tool in _tools(self._item) if tool["function"]["name"] in names]
        text = f"{json.dumps(described)}\nThese functions are new; you can call them too. What about now?"
        return ({"role": "user", "content": text},)

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        """By BFCL's checker; requests that the episode did not get to are without calls."""
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        if self._fault is not None:
            return wrong(self._fault)
        gold = self._row.fields["ground_truth"]
        made = [*self._requests, *([] for _ in range(len(gold) - len(self._requests)))]
        found = multi_turn_checker(made, gold, self._item, self._row.fields["category"], self._name)
        if found["valid"]:
            return Verdict(1.0, {"calls": float(self._calls)})
        return wrong(f"{found['error_type']}: {found['error_message']}")

    async def close(self) -> None:
        """BFCL keeps services in the globals of a module; those of this episode go."""
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

        for name in [name for name in vars(multi_turn_utils) if name.startswith(f"{self._name}_")]:
            delattr(multi_turn_utils, name)


def _written(call: ToolCall, offered: set[str]) -> str | None:
    """The call as Python text, which BFCL evaluates: a tool's name and literals. None where it is no such call."""
    if call.name not in offered or not all(key.isidentifier() for key in call.arguments):
        return None
    numbers = [value for value in call.arguments.values() if isinstance(value, (int, float))]
    if call.name in _COSTLY and any(abs(number) > _LARGEST for number in numbers):
        return None
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _tools(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        tool
        for service in item["involved_classes"]
        for tool in _service(service)
        if tool["function"]["name"] not in item.get("excluded_function", ())
    ]


@functools.lru_cache
def _service(name: str) -> tuple[dict[str, Any], ...]:
    """The tools of one service; what a tool returns is part of its description."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    return tuple(
        tool_of(function) for function in records(f"multi_turn_func_doc/{MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]}")
    )
