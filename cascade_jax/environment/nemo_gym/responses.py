"""What an assistant said as an OpenAI Response, and back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_jax.data import messages as chat
from cascade_jax.data.rows import to_record
from cascade_jax.rollout.environment import Trajectory
from cascade_jax.types import Reply, Row, ToolCall

Item = dict[str, Any]


def record(row: Row) -> dict[str, Any]:
    """The row as it is sent: NeMo-Gym wants every column of a tool, also those that say nothing."""
    written = to_record(row)
    asked = written.get("responses_create_params", {})
    if tools := asked.get("tools"):
        written["responses_create_params"] = {**asked, "tools": [{"strict": None, **tool} for tool in tools]}
    return written


def response(items: Sequence[Item], *, tools: Sequence[Mapping[str, Any]] = (), cut_off: bool = False) -> Item:
    """A whole Response around output items. `cut_off`: a limit of tokens ended it."""
    return {
        "id": "resp_0",
        "created_at": 0.0,
        "model": "policy",
        "object": "response",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [{"strict": None, **tool} for tool in chat.to_tools(tools)],
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "status": "incomplete" if cut_off else "completed",
    }


def output_items(trajectory: Trajectory) -> list[Item]:
    """All that was said after the opening: the assistant's turns, and what it read of tools or the user."""
    items: list[Item] = []
    calls = 0
    for i, reply in enumerate(trajectory.replies):
        items += reply_items(reply, first_call=calls)
        read = trajectory.observations[i].messages if i < len(trajectory.observations) else ()
        for j, message in enumerate(read):
            if message["role"] == "tool":
                call_id = f"call_{calls + min(j, max(len(reply.tool_calls) - 1, 0))}"
                items.append({"type": "function_call_output", "call_id": call_id, "output": message["content"]})
            else:
                items.append({"type": "message", "role": message["role"], "content": message["content"]})
        calls += len(reply.tool_calls)
    return items


def reply_items(reply: Reply, *, first_call: int = 0) -> list[Item]:
    """The items of one turn, at least one: a message without text where nothing was said."""
    items: list[Item] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{first_call}", "summary": summary})
    if reply.content or not reply.tool_calls:
        text = {"type": "output_text", "text": reply.content, "annotations": []}
        message = {"type": "message", "id": f"msg_{first_call}", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [text]})
    for i, call in enumerate(reply.tool_calls, first_call):
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        items.append({"type": "function_call", "call_id": f"call_{i}", "name": call.name, "arguments": arguments})
    return items


def replies(output: Any) -> list[Reply]:
    """The assistant's turns in the output items of a Response. ValueError: what is given are no such items."""
    if not isinstance(output, list):
        raise ValueError(f"response.output is a {type(output).__name__}; it must be a list of items")
    return [_reply(turn) for turn in turns(output)]


def turns(output: Sequence[Item]) -> list[list[Item]]:
    """The items of each of the assistant's turns: those between what it read."""
    found: list[list[Item]] = [[]]
    for item in output:
        if not isinstance(item, Mapping):
            raise ValueError(f"response.output holds a {type(item).__name__}; it must hold objects")
        if item.get("type") == "function_call_output" or item.get("role", "assistant") != "assistant":
            found.append([])
        else:
            found[-1].append(item)
    return [turn for turn in found if turn]


def _reply(items: Sequence[Item]) -> Reply:
    if all(item.get("type", "message") == "message" for item in items) and not _text(items):
        return Reply("")
    try:
        messages = chat.parse_messages(list(items))
    except ValueError as error:  # such as two thoughts, or arguments that are no JSON: the assistant's own fault
        return Reply(content=_text(items), malformed=str(error))
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return Reply(
        content="".join(message["content"] for message in messages),
        reasoning="".join(message.get("reasoning_content", "") for message in messages),
        tool_calls=tuple(ToolCall(call["name"], call["arguments"]) for call in calls),
    )


def _text(items: Sequence[Item]) -> str:
    contents = [item.get("content") or "" for item in items]
    parts = [[content] if isinstance(content, str) else content for content in contents]
    return "".join(p if isinstance(p, str) else str(p.get("text", "")) for some in parts for p in some)
