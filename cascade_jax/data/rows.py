"""Rows in the NeMo-Gym JSONL schema: `parse_row` checks a record and makes a Row of it, `to_record` goes back.

`Row.kind` names the verifier and `Row.fields` holds the columns that it reads (`kinds.py`), each in one canonical form.
A row of any kind may carry a `demonstration`, the assistant's message that answers it, or the list of all messages of
an episode; in rows with `messages` (sft) it is the last one. Columns that are not known stay in `Row.extra`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cascade_jax.data import kinds, published
from cascade_jax.data import messages as chat
from cascade_jax.types import Row

_HOLDERS = ("verifier_metadata", "instance", "metadata")  # the last two in rows of SWE alone


class RowError(ValueError):
    """A row that breaks its schema: `where` is source and line, `reason` the rest of the sentence."""

    def __init__(self, where: str, reason: str):
        super().__init__(f"{where}: {reason}.")
        self.where, self.reason = where, reason

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.where, self.reason)


class UngradableRow(RowError):
    """A row that is whole, but that no answer can be graded by: it is left out and counted."""


def parse_row(record: Mapping[str, Any], *, where: str) -> Row:
    """The checked Row of one record; `where` ("rows.jsonl:12") begins the one sentence of a RowError.

    UngradableRow where the columns that an answer is graded by are empty.
    """
    try:
        return _parse(record)
    except kinds.NoSignal as error:
        raise UngradableRow(where, str(error)) from None
    except ValueError as error:
        raise RowError(where, str(error)) from None


def to_record(row: Row) -> dict[str, Any]:
    """The JSON-able record of a row; `parse_row` makes an equal Row of it."""
    fields, extra = kinds.written_calls(row.fields), dict(row.extra)
    if row.kind == "sft":
        record: dict[str, Any] = {"messages": [*row.messages, fields.pop("demonstration")]}
        record |= {"tools": list(row.tools)} if row.tools else {}
    else:
        request = {"input": chat.to_items(row.messages)} | ({"tools": chat.to_tools(row.tools)} if row.tools else {})
        record = {"responses_create_params": request | extra.pop("responses_create_params", {})}
    return {"id": row.id, "kind": row.kind, **record, **fields, **extra}


def demonstration(row: Row) -> chat.Message | list[chat.Message] | None:
    """What answers `row.messages` and is to be imitated: the assistant's message, or all messages of an episode."""
    return row.fields.get("demonstration")


def demonstrated(row: Row) -> list[chat.Message]:
    """The same as a list: it begins and ends with the assistant, who may have read others in between."""
    given = demonstration(row)
    return list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []


def _parse(record: Mapping[str, Any]) -> Row:
    if not isinstance(record, Mapping):
        raise ValueError(f"the row is a {type(record).__name__}, not an object")
    record = {key: value for key, value in record.items() if value is not None}
    if record.get("_hf_placeholder"):
        raise ValueError("the row is a placeholder of another data set; fill it with that data set's own script first")
    kind = kinds.detect_kind(record)
    record = published.renamed(kind, record)
    record.pop("kind", None)
    record, fields = _pop_fields(record, kind)
    messages, tools = _pop_conversation(record, kind, fields)
    if kind == "sft":
        fields["demonstration"], messages = messages[-1], messages[:-1]
    elif "demonstration" in record:
        fields["demonstration"] = _parse_demonstration(record.pop("demonstration"))
    fields = kinds.check(kind, fields, tools)
    given = record.pop("id") if "id" in record else record.pop("uuid", None)
    row = Row(
        id="" if given is None else str(given), kind=kind, messages=messages, tools=tools, fields=fields, extra=record
    )
    if row.id:
        return row
    text = json.dumps(to_record(row), sort_keys=True, ensure_ascii=False)
    return Row(hashlib.sha256(text.encode()).hexdigest()[:32], kind, messages, tools, fields, record)


def _pop_fields(record: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the rest of the record, the kind's columns), which stand in the record itself or in an object of it."""
    fields = {name: record.pop(name) for name in kinds.COLUMNS[kind] if name in record}
    for holder in _HOLDERS:
        nested = record.get(holder)
        if not isinstance(nested, Mapping) or (holder != "verifier_metadata" and kind not in ("swe", "swe_repair")):
            continue
        found = {name: nested[name] for name in kinds.COLUMNS[kind] if nested.get(name) is not None}
        fields = found | fields
        rest = {name: value for name, value in nested.items() if name not in found}
        record = {key: value for key, value in record.items() if key != holder}
        record |= {holder: rest} if rest else {}
    return record, fields


def _pop_conversation(record: dict[str, Any], kind: str, fields: Mapping[str, Any]) -> tuple[tuple, tuple]:
    """(messages, tools) of the record, whose columns for them are taken out."""
    if kind == "sft":
        messages = chat.parse_messages(record.pop("messages", None))
        if messages[-1]["role"] != "assistant" or len(messages) == 1:
            raise ValueError("messages must end with the assistant's answer to at least one message before it")
        return messages, chat.parse_tools(record.pop("tools", []))
    request = record.pop("responses_create_params", {})
    if not isinstance(request, Mapping):
        raise ValueError("responses_create_params is not an object")
    request = {key: value for key, value in request.items() if value is not None}
    texts = (fields.get(name) for name in ("prompt", "question", "problem_statement"))
    text = next((text for text in texts if text), None)
    given = request.pop("input", text)
    messages = chat.parse_messages(given if given or text is None else text)
    if "instructions" in request:
        messages = chat.parse_messages([{"role": "system", "content": request.pop("instructions")}, *messages])
    tools = chat.parse_tools(request.pop("tools", []))
    if messages[-1]["role"] not in ("user", "tool"):
        raise ValueError(
            f"the prompt ends with the {messages[-1]['role']}'s message; it must end with the user's or a tool's"
        )
    if request:
        record["responses_create_params"] = request
    return messages, tools


def _parse_demonstration(value: Any) -> chat.Message | list[chat.Message]:
    if isinstance(value, list):
        messages = list(chat.parse_messages(value))
        if messages[0]["role"] != "assistant" or messages[-1]["role"] != "assistant":
            raise ValueError("demonstration must begin and end with a message of the assistant")
        return messages
    if not isinstance(value, Mapping):
        raise ValueError(f"demonstration is a {type(value).__name__}; it must be an assistant's message, or several")
    message = chat.parse_message({"role": "assistant"} | value)
    if message["role"] != "assistant" or chat.is_empty(message):
        raise ValueError("demonstration must be a message of the assistant with text or tool calls")
    return message
