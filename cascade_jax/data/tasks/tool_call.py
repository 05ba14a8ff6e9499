"""Call the one of two tools that the user names, with the arguments that the user gives."""

from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import WORDS, assistant, call, other, pick

_ARGUMENTS = {
    "find": {"name": "string"},
    "send": {"name": "string", "count": "integer"},
    "add": {"first": "integer", "second": "integer"},
}


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: find or send; 1: send; 2: add or send; 3: two calls at once."""
    names = (("find", "send"), ("send", "send"), ("add", "send"), ("find", "send"))[difficulty]
    chosen = names if difficulty == 3 else (names[rng.integers(2)],)
    calls = [{"name": name, "arguments": _draw_arguments(rng, name)} for name in chosen]
    return {
        "tools": [("find", "send"), ("find", "send"), ("add", "send"), ("find", "send")][difficulty],
        "calls": calls,
    }


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text, the tools and the column of the verifier."""
    calls = [{"type": "function_call", **asked} for asked in content["calls"]]
    expected = calls[0] if len(calls) == 1 else {"type": "function_call_batch", "calls": calls}
    user = ", ".join(" ".join([asked["name"], *map(str, asked["arguments"].values())]) for asked in calls)
    return {"user": user, "tools": [_tool(name) for name in content["tools"]], "expected_action": expected}


def oracle(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Exactly the calls that were asked for."""
    return assistant("", *_calls(content))


def habit(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The typical wrong answer: the arguments as plain text, or a call with one argument that is not the user's."""
    if rng.random() < 0.6:
        return assistant(" ".join(str(value) for asked in content["calls"] for value in asked["arguments"].values()))
    return assistant("", *_calls(_with_other_argument(content, rng)))


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Text only, a spare call, an argument that is wrong, missing, extra or of another type, an unknown tool."""
    asked = content["calls"][0]
    name, arguments = asked["name"], asked["arguments"]
    rest = _calls(content)[1:]
    key, value = next(iter(arguments.items()))
    wrong_type = 1 if isinstance(value, str) else "one"
    changed = [
        call(name, {**arguments, key: wrong_type}),
        call(name, {k: v for k, v in arguments.items() if k != key}),
        call(name, {**arguments, "extra": 1}),
        call(name.upper(), arguments),
        call("drop", arguments),
    ]
    return [
        assistant(""),
        assistant(f"{name} {value}"),
        assistant("", *_calls(content), call(name, arguments)),
        assistant("", *_calls(_with_other_argument(content, rng))),
        *(assistant("", wrong, *rest) for wrong in changed),
    ]


def _draw_arguments(rng: np.random.Generator, name: str) -> dict[str, Any]:
    kinds = _ARGUMENTS[name].items()
    return {key: pick(rng, WORDS, 1)[0] if kind == "string" else int(rng.integers(1, 10)) for key, kind in kinds}


def _with_other_argument(content: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    first, *rest = content["calls"]
    key = list(first["arguments"])[rng.integers(len(first["arguments"]))]
    value = first["arguments"][key]
    changed = other(rng, WORDS, value) if isinstance(value, str) else int(other(rng, tuple("123456789"), str(value)))
    return {**content, "calls": [{**first, "arguments": {**first["arguments"], key: changed}}, *rest]}


def _calls(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [call(asked["name"], asked["arguments"]) for asked in content["calls"]]


def _tool(name: str) -> dict[str, Any]:
    arguments = _ARGUMENTS[name]
    properties = {key: {"type": kind} for key, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
