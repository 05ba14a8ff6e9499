"""Single-step tool calls: the calls of a reply against the action that the row expects.

Row field `expected_action` (NeMo-Gym): {type: function_call, name, arguments}, {type: function_call_batch, calls} or
{type: message}. `arguments` is a JSON object, as text or parsed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cascade_jax.data.chat import THINK_TAGS, TOOL_TAGS
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Reply, Row, Sample, ToolCall

T = TypeVar("T")
_SPAM = 8  # times the expected calls; more are guesses, of which some would match


@dataclass(frozen=True)
class ToolCalls:
    """`strict`: 1 for exactly the expected calls in any order, else 0. `f1`: 2 * matched / (expected + made).

    An argument that is left out counts as the default that the tool declares. In f1 mode more than eight times as many
    calls as expected earn 0. A reply whose format is broken earns -malformed_penalty, whatever it calls.
    """

    grading: Literal["strict", "f1"] = "strict"
    ignore_case: bool = False  # of string arguments
    malformed_penalty: float = 0.0

    def verify(self, row: Row, sample: Sample) -> Verdict:
        try:
            expected = _expected_calls(row.fields.get("expected_action"))
        except (ValueError, TypeError, KeyError) as error:
            return unjudged(f"expected_action cannot be read: {error}")
        if (early := unanswered(sample)) is not None:
            return early
        reply = reply_of(sample)
        if (fault := format_fault(reply)) is not None:
            return malformed(fault, self.malformed_penalty)
        if not expected:
            return Verdict(float(not reply.tool_calls), {"calls": float(len(reply.tool_calls))})
        matched = self._matched(row.tools, expected, reply.tool_calls)
        f1 = 2 * matched / (len(expected) + len(reply.tool_calls))
        spam = len(reply.tool_calls) > _SPAM * len(expected)
        reward = f1 * (not spam) if self.grading == "f1" else float(f1 == 1.0)
        names = {call.name for call in expected}
        components = {
            "f1": f1,
            "calls": float(len(reply.tool_calls)),
            "right_tool": float(bool(reply.tool_calls) and {call.name for call in reply.tool_calls} == names),
        }
        return Verdict(reward, components, {"matched": matched, "expected": len(expected)})

    def _matched(
        self, tools: Sequence[Mapping[str, Any]], expected: Sequence[ToolCall], made: Sequence[ToolCall]
    ) -> int:
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}

        def same(call: ToolCall, other: ToolCall) -> bool:
            declared = functions.get(call.name, {}).get("parameters", {})
            arguments = [_with_defaults(one.arguments, declared) for one in (call, other)]
            return call.name == other.name and same_value(*arguments, ignore_case=self.ignore_case)

        return matching(expected, made, same)


def format_fault(reply: Reply) -> str | None:
    """What is wrong with the form of a reply: a call that was not read, tags of calls or thoughts left in the text."""
    if reply.malformed is not None:
        return reply.malformed
    tags = [tag for tag in (*TOOL_TAGS, *THINK_TAGS) if tag in reply.content]
    return f"{tags[0]} is left in the text" if tags else None


def malformed(fault: str, penalty: float) -> Verdict:
    """The verdict on a reply with a broken format: reward -penalty."""
    return Verdict(-penalty or 0.0, {"malformed": 1.0}, {"reason": f"malformed reply: {fault}"})


def matching(expected: Sequence[T], made: Sequence[T], same: Callable[[T, T], bool]) -> int:
    """The most pairs in which each of both is used once: maximum bipartite matching by augmenting paths (Kuhn 1955).

    Taking the first that fits is not enough, since numbers that are close to a third need not be close to each other.
    """
    fits = [[j for j, other in enumerate(made) if same(call, other)] for call in expected]
    partner: dict[int, int] = {}  # made -> expected

    def placed(i: int, tried: set[int]) -> bool:
        for j in fits[i]:
            if j not in tried:
                tried.add(j)
                if j not in partner or placed(partner[j], tried):
                    partner[j] = i
                    return True
        return False

    return sum(placed(i, set()) for i in range(len(expected)))


def same_value(a: Any, b: Any, *, ignore_case: bool = False) -> bool:
    """Equality of JSON values: 1 is 1.0 but not True, strings without their outer blanks, lists in order.

    Numbers are compared by value, where one is not whole up to a relative 1e-9: 0.3 is 0.1 + 0.2.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, str) and isinstance(b, str):
        a, b = a.strip(), b.strip()
        return a.casefold() == b.casefold() if ignore_case else a == b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key], ignore_case=ignore_case) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y, ignore_case=ignore_case) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b)
    return bool(a == b)


def _with_defaults(arguments: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the declared defaults of those that are left out. Null leaves an optional argument out."""
    optional = {
        key: inner for key, inner in declared.get("properties", {}).items() if key not in declared.get("required", ())
    }
    given = {key: value for key, value in arguments.items() if value is not None or key not in optional}
    return {key: inner["default"] for key, inner in optional.items() if inner.get("default") is not None} | given


def _expected_calls(action: Any) -> list[ToolCall]:
    """The calls of an expected action; none where a message is expected."""
    if not isinstance(action, Mapping):
        raise ValueError("it is not an object; give {type, name, arguments}")
    match action.get("type"):
        case "message":
            return []
        case "function_call":
            return [_call(action)]
        case "function_call_batch" if action["calls"]:
            return [_call(call) for call in action["calls"]]
    raise ValueError(
        f"type {action.get('type')!r} is unknown or empty; allowed are function_call, function_call_batch, message"
    )


def _call(action: Mapping[str, Any]) -> ToolCall:
    arguments = action["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError(f"arguments of {action['name']!r} are not a JSON object")
    return ToolCall(action["name"], arguments)
