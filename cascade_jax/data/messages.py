"""Conversations: OpenAI Responses items and chat messages in, one canonical chat form out, and back.

A canonical message is a dict with `role` and `content` (text). An assistant's may also have `reasoning_content` (text,
never empty) and `tool_calls`: [{"id", "type": "function", "function": {"name", "arguments": dict}}]. A tool's has a
`tool_call_id`. A canonical tool is {"type": "function", "function": {"name", "description", "parameters", ...}}, the
form of chat completions, which every chat template reads and the Nemotron-3 renderer unwraps.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

Message = dict[str, Any]

_ROLES = ("system", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")


def parse_messages(items: Any) -> tuple[Message, ...]:
    """Canonical messages out of a text, chat messages or Responses items. ValueError says which item is wrong."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise ValueError(
            f"the conversation is {_shown(items)}; it must be a text or a list of messages that is not empty"
        )
    messages: list[Message] = []
    previous = ""
    for i, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise ValueError(f"message {i} is {_shown(item)}; it must be an object with role and content")
        try:
            _append(messages, item, previous)
        except ValueError as error:
            raise ValueError(f"message {i}: {error}") from None
        previous = item.get("type") or "message"
    for i, message in enumerate(messages):
        if message["role"] == "system" and i > 0:
            raise ValueError(f"message {i} has the role system; only the first one may")
        if message["role"] == "assistant" and is_empty(message):
            raise ValueError(f"message {i} of the assistant has neither text nor tool calls")
    return tuple(messages)


def is_empty(message: Message) -> bool:
    """True where an assistant's message says nothing and calls nothing."""
    return not (message["content"] or message.get("tool_calls") or message.get("reasoning_content"))


def _append(messages: list[Message], item: Mapping[str, Any], previous: str) -> None:
    """One item: a message, or a part of an assistant's turn that Responses keeps apart."""
    kind = item.get("type") or "message"
    if kind == "message":
        message = parse_message(item)
        if previous == "reasoning" and message["role"] == "assistant":
            message = {**message, **messages.pop()} | {"content": message["content"]}
        messages.append(message)
    elif kind == "reasoning":
        text = _text(item.get("content") or item.get("summary"))
        messages.append({"role": "assistant", "content": ""} | ({"reasoning_content": text} if text else {}))
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(_tool_call(item.get("call_id"), item))
    elif kind == "function_call_output":
        messages.append(
            {"role": "tool", "content": _text(item.get("output")), "tool_call_id": _call_id(item.get("call_id"))}
        )
    else:
        raise ValueError(f"type {kind!r} is not known; use message, reasoning, function_call or function_call_output")


def parse_message(message: Mapping[str, Any]) -> Message:
    """One canonical message. `developer` becomes `system`; an assistant's <think> text becomes reasoning_content."""
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role {role!r} is not known; use {', '.join(_ROLES)}")
    content = _text(message.get("content"))
    if role == "tool":
        return {"role": role, "content": content, "tool_call_id": _call_id(message.get("tool_call_id"))}
    if role == "user" and not content:
        raise ValueError("the user's text is empty")
    if role != "assistant":
        return {"role": role, "content": content}
    reasoning, content = split_thinking(content)
    given = _text(message.get("reasoning_content"))
    if reasoning and given:
        raise ValueError("reasoning stands in <think> tags and in reasoning_content; give it once")
    parsed = {"role": role, "content": content} | (
        {"reasoning_content": given or reasoning} if given or reasoning else {}
    )
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
            raise ValueError(f"tool_calls is {_shown(calls)}; it must be a list of objects")
        parsed["tool_calls"] = [_tool_call(call.get("id"), call.get("function", call)) for call in calls]
    return parsed


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, content) of an assistant's text; <think> may lack at its start, since prompts often end with it."""
    if "<think>" not in text and "</think>" not in text:
        return "", text
    before, opened, rest = text.partition("<think>")
    if opened and before.strip():
        raise ValueError("text stands before <think>; reasoning must come first")
    reasoning, closed, content = (rest if opened else text).partition("</think>")
    if not closed:
        raise ValueError("<think> is not closed by </think>")
    if any(tag in reasoning + content for tag in ("<think>", "</think>")):
        raise ValueError("there is more than one pair of <think> tags")
    return reasoning.strip(), content.lstrip()


def parse_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    """Canonical tools out of the flat (Responses) or the nested (chat-completions) form."""
    if not isinstance(tools, list):
        raise ValueError(f"tools is {_shown(tools)}; it must be a list of tool objects")
    parsed = []
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
            raise ValueError(f"tool {i} is {_shown(tool)}; it must be an object of type function")
        function = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError(f"tool {i} has no name")
        if not isinstance(function.get("parameters", {}), Mapping):
            raise ValueError(f"tool {i} ({function['name']}) has parameters that are not an object")
        parsed.append(
            {"type": "function", "function": {k: v for k, v in function.items() if k != "type" and v is not None}}
        )
    return tuple(parsed)


def parse_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments of a call as an object; they come as one, or as its JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            raise ValueError(f"the arguments of a call are not JSON: {error.msg}") from None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of a call are {_shown(arguments)}; they must be an object or its JSON text")
    return dict(arguments)


def to_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Responses items that `parse_messages` reads back exactly."""
    items: list[dict[str, Any]] = []
    previous = ""
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
        if message.get("reasoning_content"):
            items.append(
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": message["reasoning_content"]}]}
            )
        # An empty text keeps the calls of this turn apart from the assistant's turn before it.
        starts = message["role"] == "assistant" and previous == "assistant" and not message.get("reasoning_content")
        if message["role"] != "tool" and (message["content"] or not calls or starts):
            items.append({"role": message["role"], "content": message["content"]})
        for call in calls:
            function = call["function"]
            arguments = json.dumps(function["arguments"], ensure_ascii=False)
            items.append(
                {"type": "function_call", "call_id": call["id"], "name": function["name"], "arguments": arguments}
            )
        previous = message["role"]
    return items


def to_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Canonical tools in the flat form of Responses."""
    return [{"type": "function", **tool["function"]} for tool in tools]


def _tool_call(call_id: Any, function: Any) -> dict[str, Any]:
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("a tool call has no name")
    arguments = parse_arguments(function.get("arguments", {}))
    return {"id": _call_id(call_id), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _call_id(value: Any) -> str:
    return "" if value is None else str(value)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"the content is {_shown(content)}; it must be a text or a list of text parts")
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") not in _TEXT_PARTS
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(f"the content part {_shown(part)} is not a text; only texts can be trained on")
    return "".join(part["text"] for part in content)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
