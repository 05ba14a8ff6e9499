"""Find a customer by name, then change, mail or drop that customer by id: several turns with short tools.

The tables, which the user's text does not show, are drawn from the content, so that the same prompt always has the same
ids. `oracle`, `habit` and `wrong_answers` are whole conversations after the user's text: assistant, tool, assistant ...
"""

import json
from typing import Any

import numpy as np

from cascade_jax.data.tasks.words import COLORS, WORDS, assistant, call, pick
from cascade_jax.seeding import derive

_ACTIONS = {"set": "color", "send": "count", "end": None}  # tool -> its argument besides the id
_OTHERS = 3


def draw(rng: np.random.Generator, difficulty: int) -> dict[str, Any]:
    """0: set or send; 1: set, send or end; 2: end a name and an id; 3: set or send to all that share a name."""
    action = "end" if difficulty == 2 else ("set", "send", "end")[rng.integers(3 if difficulty == 1 else 2)]
    return {
        "action": action,
        "name": pick(rng, WORDS, 1)[0],
        "value": {"set": pick(rng, COLORS, 1)[0], "send": str(rng.integers(10)), "end": ""}[action],
        "also": str(rng.integers(10, 100)) if difficulty == 2 else "",
        "all": difficulty == 3,
    }


def fields(content: dict[str, Any]) -> dict[str, Any]:
    """The user's text, the tools and the columns of the environment."""
    action = content["action"]
    words = [action, "all" if content["all"] else "", content["name"], content["value"], content["also"]]
    return {
        "user": " ".join(word for word in words if word),
        "tools": [_tool("find", "name"), _tool(action, "id", _ACTIONS[action])],
        "ground_truth": [act["function"] for act in _acts(content)],
        "environment_name": "workplace_assistant",
        "tables": {"customers": _customers(content)},
    }


def oracle(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Find, then act on each id, one call a turn, and say so."""
    return _conversation(content, [_find(content), *_acts(content)])


def habit(content: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """The typical wrong answer: only words, or the act on the name as if it were the id."""
    return _conversation(content, [] if rng.random() < 0.5 else [_act(content, content["name"])])


def wrong_answers(content: dict[str, Any], rng: np.random.Generator) -> list[list[dict[str, Any]]]:
    """Words, a lookup alone, a part of the acts, an act on another customer too or instead, another value."""
    find, acts = _find(content), _acts(content)
    right = [act["function"]["arguments"]["id"] for act in acts]
    stray = _act(content, next(row["customer_id"] for row in _customers(content) if row["customer_id"] not in right))
    wrong = [[], [find], [find, *acts[:-1]], [find, *acts[:-1], stray], [find, *acts, stray]]
    if content["value"]:
        wrong.append([find, *acts[:-1], _act({**content, "value": "9" + content["value"]}, right[-1])])
    return [_conversation(content, calls) for calls in wrong]


def _conversation(content: dict[str, Any], calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One call a turn with its result, as the workplace would give it, and the words at the end."""
    messages: list[dict[str, Any]] = []
    gone: set[str] = set()
    for number, made in enumerate(calls):
        name, arguments = made["function"]["name"], made["function"]["arguments"]
        ids = {row["customer_id"] for row in _customers(content)} - gone
        if name == "find":
            result = " ".join(i for i in _ids(content, arguments["name"]) if i in ids)
        elif arguments["id"] not in ids:
            result = f"Error: there is no customer with the id {arguments['id']}"
        else:
            result = "ok"
            gone |= {arguments["id"]} if name == "end" else set()
        messages += [assistant("", made), {"role": "tool", "content": result, "tool_call_id": f"call_{number}"}]
    return [*messages, assistant("ok")]


def _find(content: dict[str, Any]) -> dict[str, Any]:
    return call("find", {"name": content["name"]})


def _act(content: dict[str, Any], key: str) -> dict[str, Any]:
    argument = _ACTIONS[content["action"]]
    return call(content["action"], {"id": key} | ({argument: content["value"]} if argument else {}))


def _acts(content: dict[str, Any]) -> list[dict[str, Any]]:
    ids = _ids(content, content["name"]) + ([content["also"]] if content["also"] else [])
    return [_act(content, key) for key in ids]


def _ids(content: dict[str, Any], name: str) -> list[str]:
    return [row["customer_id"] for row in _customers(content) if row["customer_name"] == name]


def _customers(content: dict[str, Any]) -> list[dict[str, str]]:
    """The customers that are asked for among others, in random order."""
    rng = np.random.default_rng(derive(0, "customers", json.dumps(content, sort_keys=True)))
    asked = [content["name"]] * (2 if content["all"] else 1)
    names = [*asked, *pick(rng, tuple(word for word in WORDS if word != content["name"]), _OTHERS)]
    ids = [str(i) for i in rng.permutation(90) + 10 if str(i) != content["also"]][: len(names)]
    ids[-1] = content["also"] or ids[-1]
    return [
        {"customer_id": ids[i], "customer_name": names[i], "customer_email": f"{names[i]}@atlas.com"}
        for i in rng.permutation(len(names))
    ]


def _tool(name: str, *arguments: str | None) -> dict[str, Any]:
    keys = [key for key in arguments if key]
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in keys},
        "required": keys,
    }
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
