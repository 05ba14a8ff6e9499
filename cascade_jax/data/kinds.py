"""The kinds of rows: how each is recognised, the columns that its verifier reads, and the checks that they must pass.

`Row.kind` names the verifier, `Row.fields` holds its columns in one canonical form each:

* instruction_following: instruction_id_list [str]; kwargs [dict], one for each id, without nulls; grading_mode binary
  or fraction; prompt
* mcqa: options [{letter: text}]; expected_answer, one of the letters; grading_mode; template_metadata with output_regex
* tool_call: expected_action, one of {type: function_call, name, arguments: dict}, {type: function_call_batch, calls}
  and {type: message, content}
* structured_output: schema_str (JSON Schema as text); schema_type; response_mode text or tool_call; tool_name;
  tool_payload_key; expected_content; grade_content (bool)
* math: expected_answer (text); question
* preference: principle; reference, an answer that win rates are measured against
* sft: demonstration, the last message
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from cascade_jax.data import messages as chat

COLUMNS: dict[str, tuple[str, ...]] = {
    "instruction_following": ("instruction_id_list", "kwargs", "prompt", "grading_mode"),
    "mcqa": ("options", "expected_answer", "grading_mode", "template_metadata"),
    "tool_call": ("expected_action",),
    "structured_output": (
        "schema_str",
        "schema_type",
        "response_mode",
        "tool_name",
        "tool_payload_key",
        "expected_content",
        "grade_content",
    ),
    "math": ("question", "expected_answer"),
    "preference": ("principle", "reference"),
    "sft": (),
}
KINDS = tuple(COLUMNS)

_AGENTS = {  # a part of the agent's name in NeMo-Gym -> kind
    "instruction_following": "instruction_following",
    "mcqa": "mcqa",
    "single_step_tool_use": "tool_call",
    "structured_outputs": "structured_output",
    "math_with": "math",
    "genrm": "preference",
    "workplace_assistant": "workplace",
    "code_gen": "code",
    "swe": "swe",
}
WITHOUT_VERIFIER = ("workplace", "code", "competitive", "swe")
_GRADING = {
    "instruction_following": ("binary", "fraction"),
    "mcqa": ("strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"),
}
_SCHEMA_TYPES = ("json", "yaml", "xml", "toml", "csv")


def detect_kind(record: Mapping[str, Any]) -> str:
    """The kind by its `kind` column, its agent, or the columns that it has. ValueError where nothing tells it."""
    if "kind" in record:
        if record["kind"] not in KINDS:
            raise ValueError(f"the kind {record['kind']!r} is not known; allowed are {', '.join(KINDS)}")
        return record["kind"]
    agent_ref = record.get("agent_ref")
    agent = str(agent_ref.get("name")) if isinstance(agent_ref, Mapping) else ""
    for part, kind in _AGENTS.items():
        if part in agent:
            return kind
    columns = record | (record["verifier_metadata"] if isinstance(record.get("verifier_metadata"), Mapping) else {})
    signs: tuple[tuple[bool, str], ...] = (
        ("instruction_id_list" in columns, "instruction_following"),
        (columns.get("environment_name") in ("workbench", "workplace_assistant"), "workplace"),
        ("unit_tests" in columns, "code"),
        ("competition_id" in columns, "competitive"),
        ("instance" in columns, "swe"),
        (bool(columns.get("schema_str")), "structured_output"),
        ("expected_action" in columns, "tool_call"),
        ("options" in columns or columns.get("grading_mode") in _GRADING["mcqa"], "mcqa"),
        ("expected_answer" in columns, "math"),
        ("messages" in columns, "sft"),
        ("responses_create_params" in columns, "preference"),
    )
    for present, kind in signs:
        if present:
            return kind
    raise ValueError(f"no column tells the kind of this row; it has {', '.join(sorted(record)) or 'no columns'}")


def check(kind: str, fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    """The columns of a kind in canonical form. ValueError where one is missing or wrong."""
    return {**fields, **_CHECKS[kind](fields, tools)} if kind in _CHECKS else dict(fields)


def _check_instruction_following(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    ids, kwargs = fields.get("instruction_id_list"), fields.get("kwargs")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) and i for i in ids):
        raise ValueError("instruction_id_list must be a list of instruction ids that is not empty")
    if not isinstance(kwargs, list) or len(kwargs) != len(ids):
        raise ValueError(f"kwargs must be a list with one entry for each of the {len(ids)} instruction ids")
    if not all(entry is None or isinstance(entry, Mapping) for entry in kwargs):
        raise ValueError("an entry of kwargs is neither null nor an object")
    return {
        "kwargs": [_clean_kwargs(entry or {}) for entry in kwargs],
        "grading_mode": _grading(fields, "instruction_following"),
    }


def _clean_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Without nulls; published rows also wrap a single keyword in a list (keyword, keyword1, ..., but not keywords)."""
    cleaned = dict(kwargs)
    for key in kwargs:
        while re.fullmatch(r"keyword\d*", key) and isinstance(cleaned[key], list) and len(cleaned[key]) == 1:
            cleaned[key] = cleaned[key][0]
    return {key: value for key, value in cleaned.items() if value is not None}


def _check_mcqa(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    options = fields.get("options")
    if not isinstance(options, list) or not all(isinstance(option, Mapping) for option in options):
        raise ValueError("options must be a list of {letter: text}")
    options = [{letter: text} for option in options for letter, text in option.items() if text is not None]
    if not all(isinstance(text, str) for option in options for text in option.values()):
        raise ValueError("an option is not a text")
    letters = [letter for option in options for letter in option]
    if len(letters) < 2 or len(set(letters)) != len(letters) or not all(re.fullmatch("[A-Z]", x) for x in letters):
        raise ValueError(
            f"the options have the letters {letters}; at least two different ones out of A to Z are needed"
        )
    answer = fields.get("expected_answer")
    if answer not in letters:
        raise ValueError(f"expected_answer is {answer!r}; it must be one of the letters {', '.join(letters)}")
    metadata = fields.get("template_metadata", {})
    patterns = metadata.get("output_regex") or [] if isinstance(metadata, Mapping) else None
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
        raise ValueError("template_metadata.output_regex must be a text or a list of texts")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"template_metadata.output_regex {pattern!r} does not compile: {error}") from None
    return {"options": options, "grading_mode": _grading(fields, "mcqa")}


def _grading(fields: Mapping[str, Any], kind: str) -> str:
    mode, allowed = fields.get("grading_mode", _GRADING[kind][0]), _GRADING[kind]
    if mode not in allowed:
        raise ValueError(f"grading_mode is {mode!r}; allowed are {', '.join(allowed)}")
    return mode


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


def written_action(action: Mapping[str, Any]) -> dict[str, Any]:
    """An expected action as NeMo-Gym writes it: the arguments of a call are JSON text."""
    if action["type"] == "function_call":
        return {**action, "arguments": json.dumps(action["arguments"], ensure_ascii=False)}
    if action["type"] == "function_call_batch":
        return {**action, "calls": [written_action(call) for call in action["calls"]]}
    return dict(action)


def _check_structured_output(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    schema, kind, mode = (
        fields.get("schema_str"),
        fields.get("schema_type", "json"),
        fields.get("response_mode", "text"),
    )
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else None
    except json.JSONDecodeError as error:
        raise ValueError(f"schema_str is not JSON: {error.msg}") from None
    if not isinstance(parsed, dict):
        raise ValueError("schema_str must be the text of a JSON Schema object")
    if kind not in _SCHEMA_TYPES:
        raise ValueError(f"schema_type is {kind!r}; allowed are {', '.join(_SCHEMA_TYPES)}")
    if mode not in ("text", "tool_call"):
        raise ValueError(f"response_mode is {mode!r}; allowed are text, tool_call")
    if mode == "tool_call" and not fields.get("tool_name"):
        raise ValueError("response_mode tool_call needs a tool_name")
    return {"schema_type": kind, "response_mode": mode}


def _check_math(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    answer = fields.get("expected_answer")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
        raise ValueError(f"expected_answer is {answer!r}; it must be a text or a number")
    return {"expected_answer": str(answer)}


def _check_preference(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    for name in ("principle", "reference"):
        if not isinstance(fields.get(name, ""), str):
            raise ValueError(f"{name} must be a text")
    return {}


_CHECKS: dict[str, Callable[[Mapping[str, Any], tuple], dict[str, Any]]] = {
    "instruction_following": _check_instruction_following,
    "mcqa": _check_mcqa,
    "tool_call": _check_tool_call,
    "structured_output": _check_structured_output,
    "math": _check_math,
    "preference": _check_preference,
}
