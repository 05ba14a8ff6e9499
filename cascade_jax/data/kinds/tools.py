"""Columns of the kinds that call tools: one turn against an expected action, several turns in a workplace."""

import json
from collections.abc import Mapping
from typing import Any

from cascade_jax.data import messages as chat
from cascade_jax.data.kinds.columns import NoSignal, parsed

COLUMNS = {
    "tool_call": ("expected_action",),
    "workplace": ("ground_truth", "category", "environment_name", "question", "tables"),
}


def _check_tool_call(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    names = [tool["function"]["name"] for tool in tools]
    return {"expected_action": _parse_action(fields.get("expected_action"), names)}


def _parse_action(action: Any, names: list[str]) -> dict[str, Any]:
    kind = action.get("type") if isinstance(action, Mapping) else None
    if kind == "message":
        return {**action, "content": action.get("content") or ""}
    if kind == "function_call":
        if action.get("name") not in names:
            raise ValueError(
                f"expected_action calls {action.get('name')!r}, which is not among the tools "
                f"{', '.join(names) or '(none)'}"
            )
        return {**action, "arguments": chat.parse_arguments(action.get("arguments", {}))}
    if kind == "function_call_batch":
        calls = action.get("calls")
        if not isinstance(calls, list) or not calls or not all(isinstance(call, Mapping) for call in calls):
            raise ValueError("expected_action of type function_call_batch needs a list of calls that is not empty")
        return {**action, "calls": [_parse_action({"type": "function_call"} | dict(call), names) for call in calls]}
    raise ValueError("expected_action must be an object of type function_call, function_call_batch or message")


def _check_workplace(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    calls = parsed(fields.get("ground_truth") or [], "ground_truth")
    if isinstance(calls, list) and not calls:
        raise NoSignal("ground_truth is empty, so there is no end state to compare with")
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError("ground_truth must be a list of calls, each with name and arguments, or the JSON text of one")
    if not _are_tables(fields.get("tables", {})):
        raise ValueError("tables must be an object of lists of records, whose values are texts")
    names = [tool["function"]["name"] for tool in tools]
    for call in calls:
        if not isinstance(call.get("name"), str) or not call["name"]:
            raise ValueError("a call of ground_truth has no name")
        if names and call["name"] not in names:
            raise ValueError(f"ground_truth calls {call['name']!r}, which is not among the tools {', '.join(names)}")
    return {"ground_truth": [{**call, "arguments": chat.parse_arguments(call.get("arguments", {}))} for call in calls]}


def _are_tables(tables: Any) -> bool:
    return isinstance(tables, Mapping) and all(
        isinstance(records, list)
        and all(isinstance(record, Mapping) and all(isinstance(v, str) for v in record.values()) for record in records)
        for records in tables.values()
    )


def written_calls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The columns as NeMo-Gym writes them: the arguments of a call are JSON text."""
    written = dict(fields)
    if "expected_action" in fields:
        written["expected_action"] = _written_action(fields["expected_action"])
    if "ground_truth" in fields:
        written["ground_truth"] = [_written_call(call) for call in fields["ground_truth"]]
    return written


def _written_action(action: Mapping[str, Any]) -> dict[str, Any]:
    if action["type"] == "function_call":
        return _written_call(action)
    if action["type"] == "function_call_batch":
        return {**action, "calls": [_written_action(call) for call in action["calls"]]}
    return dict(action)


def _written_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}


CHECKS = {"tool_call": _check_tool_call, "workplace": _check_workplace}
