"""Columns of the kinds whose answer is judged by a rule: instructions, options, documents, numbers, recalled facts."""

import json
import re
from collections.abc import Mapping
from typing import Any

from cascade_jax.data.kinds.columns import NoSignal, choice, parsed, text

COLUMNS = {
    "instruction_following": ("instruction_id_list", "kwargs", "prompt", "grading_mode"),
    "mcqa": ("options", "expected_answer", "grading_mode", "template_metadata"),
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
    "long_context": ("question", "expected_answer", "grading_mode", "candidates"),
}

GRADING = {
    "instruction_following": ("binary", "fraction"),
    "mcqa": ("strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"),
    "long_context": ("graph_f1", "all", "any"),
}
_SCHEMA_TYPES = ("json", "yaml", "xml", "toml", "csv")


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
        **choice(fields, "grading_mode", GRADING["instruction_following"]),
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
    options = [options] if isinstance(options, Mapping) else options
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
    return {"options": options, **choice(fields, "grading_mode", GRADING["mcqa"])}


def _check_structured_output(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    schema = fields.get("schema_str")
    if schema is None or schema == "":
        raise NoSignal("schema_str is empty, so there is nothing to grade an answer by")
    if not isinstance(schema, str) or not isinstance(parsed(schema, "schema_str"), dict):
        raise ValueError("schema_str must be the text of a JSON Schema object")
    modes = {
        **choice(fields, "schema_type", _SCHEMA_TYPES),
        **choice(fields, "response_mode", ("text", "tool_call")),
    }
    if modes["response_mode"] == "tool_call" and not fields.get("tool_name"):
        raise ValueError("response_mode tool_call needs a tool_name")
    return modes


def _check_math(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    answer = fields.get("expected_answer")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
        raise ValueError(f"expected_answer is {answer!r}; it must be a text or a number")
    return {"expected_answer": str(answer)}


def _check_long_context(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    answer, mode = fields.get("expected_answer"), {}
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
            mode = {"grading_mode": "graph_f1"} if isinstance(answer, list) else {}  # how nodes of graphs are published
        except json.JSONDecodeError:
            answer = [answer]
    answer = answer if isinstance(answer, list) else [answer]
    if not answer or not all(isinstance(part, (str, int)) and str(part).strip() for part in answer):
        raise ValueError("expected_answer must be a list of texts that is not empty, or the JSON text of one")
    return {
        **text(fields, "question"),
        "expected_answer": [str(part) for part in answer],
        **choice(mode | dict(fields), "grading_mode", GRADING["long_context"]),
        **_pattern(fields, "candidates"),
    }


def _pattern(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A regular expression that may be missing."""
    found = text(fields, name)
    try:
        re.compile(found.get(name, ""))
    except re.error as error:
        raise ValueError(f"{name} {found[name]!r} does not compile: {error}") from None
    return found


CHECKS = {
    "instruction_following": _check_instruction_following,
    "mcqa": _check_mcqa,
    "structured_output": _check_structured_output,
    "math": _check_math,
    "long_context": _check_long_context,
}
