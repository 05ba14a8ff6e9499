"""Single-step tool calls: the calls of a reply against the action that the row expects.

Row field `expected_action` (NeMo-Gym): {type: function_call, name, arguments}, {type: function_call_batch, calls} or
{type: message}. `arguments` is a JSON object, as text or parsed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample, ToolCall


@dataclass(frozen=True)
class ToolCalls:
    """`strict`: 1 for exactly the expected calls in any order, else 0. `f1`: 2 * matched / (expected + made)."""

    grading: Literal["strict", "f1"] = "strict"
    ignore_case: bool = False  # of string arguments

    def verify(self, row: Row, sample: Sample) -> Verdict:
        try:
            expected = _expected_calls(row.fields.get("expected_action"))
        except (ValueError, TypeError, KeyError) as error:
            return unjudged(f"expected_action cannot be read: {error}")
        early = unanswered(sample)
        if early is not None:
            return early
        reply = reply_of(sample)
        if reply.malformed is not None:
            return wrong(f"malformed reply: {reply.malformed}")
        if not expected:
            return Verdict(float(not reply.tool_calls), {"calls": float(len(reply.tool_calls))})
        matched = self._matched(expected, reply.tool_calls)
        f1 = 2 * matched / (len(expected) + len(reply.tool_calls))
        reward = f1 if self.grading == "f1" else float(f1 == 1.0)
        names = {call.name for call in expected}
        components = {
            "f1": f1,
            "calls": float(len(reply.tool_calls)),
            "right_tool": float(bool(reply.tool_calls) and {call.name for call in reply.tool_calls} == names),
        }
        return Verdict(reward, components, {"matched": matched, "expected": len(expected)})

    def _matched(self, expected: Sequence[ToolCall], made: Sequence[ToolCall]) -> int:
        # Sameness of calls is an equivalence relation, so taking the first match is a maximum matching.
        left = list(made)
        for call in expected:
            for i, other in enumerate(left):
                if other.name == call.name and same_value(
                    call.arguments, other.arguments, ignore_case=self.ignore_case
                ):
                    del left[i]
                    break
        return len(made) - len(left)


def same_value(a: Any, b: Any, *, ignore_case: bool = False) -> bool:
    """Equality of JSON values: 1 is 1.0 but not True, strings without their outer blanks, lists in order."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, str) and isinstance(b, str):
        a, b = a.strip(), b.strip()
        return a.casefold() == b.casefold() if ignore_case else a == b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key], ignore_case=ignore_case) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y, ignore_case=ignore_case) for x, y in zip(a, b, strict=True))
    return bool(a == b)


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
