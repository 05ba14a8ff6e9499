"""Right calls for BFCL's items, made out of its possible answers, which list for each argument what is allowed."""

import ast
import json
from typing import Any

from cascade_jax.types import Row, ToolCall
from evals.bfcl_turns import _tools


def gold_calls(row: Row) -> list[ToolCall]:
    """Of each argument a value that is allowed; left out where its function does not have it and it may be missing."""
    functions = {function["name"]: function["parameters"] for function in row.fields["functions"]}
    return [
        ToolCall(name, _arguments(row.fields["category"], functions[name], allowed))
        for answer in row.fields["possible_answer"]
        for name, allowed in answer.items()
    ]


def _arguments(category: str, parameters: dict[str, Any], allowed: dict[str, list]) -> dict[str, Any]:
    made = {}
    for key, values in allowed.items():
        declared = parameters["properties"].get(key)
        given = [value for value in values if value != ""]
        if given and not (declared is None and "" in values):
            made[key] = _written(category, _one(given[0]), declared or {})
        elif values and key in parameters["required"]:
            made[key] = ""
    return made


def _one(value: Any) -> Any:
    """In an object each value is a list of those that are allowed, an empty text where it may be missing."""
    if isinstance(value, dict):
        return {k: next(v for v in values if v != "") for k, values in value.items() if any(v != "" for v in values)}
    return [_one(inner) for inner in value] if isinstance(value, list) else value


def _written(category: str, value: Any, declared: dict[str, Any]) -> Any:
    """The value as an argument: of Java and JavaScript it is code."""
    if category not in ("simple_java", "simple_javascript") or isinstance(value, str):
        return value
    return _java(value, declared) if category == "simple_java" else _javascript(value, declared)


def _java(value: Any, declared: dict[str, Any]) -> str:
    kind, items = declared["type"], declared.get("items", {"type": "any"})
    if kind == "HashMap":
        puts = " ".join(f'put("{key}", {json.dumps(inner)});' for key, inner in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    if kind == "Array":
        return f"new Object[]{{{', '.join(v if isinstance(v, str) else _java(v, items) for v in value)}}}"
    if kind == "ArrayList":
        inside = ", ".join(json.dumps(v) if isinstance(v, str) else _java(v, items) for v in value)
        return f"new ArrayList<Object>(Arrays.asList({inside}))" if value else "new ArrayList<Object>()"
    return json.dumps(value) + {"long": "L", "float": "f"}.get(kind, "")


def _javascript(value: Any, declared: dict[str, Any]) -> str:
    return f"{value}n" if declared["type"] == "Bigint" else json.dumps(value)


def gold_turns(row: Row) -> list[list[ToolCall]]:
    """The right calls of each request of a multi-turn item, whose answers are Python text."""
    return [[_parsed(text, row) for text in texts] for texts in row.fields["ground_truth"]]


def _parsed(text: str, row: Row) -> ToolCall:
    call = ast.parse(text, mode="eval").body
    names = [
        name
        for tool in _tools(row.fields["item"])
        if tool["function"]["name"] == call.func.id
        for name in tool["function"]["parameters"]["properties"]
    ]
    values = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    return ToolCall(call.func.id, values | {word.arg: ast.literal_eval(word.value) for word in call.keywords})
