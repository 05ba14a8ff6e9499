"""Structured output: the whole answer must parse and fit the row's JSON Schema, made strict.

Row fields (NeMo-Gym): `schema_str`, `schema_type` (json, yaml, xml, toml, csv), `response_mode` (text, tool_call),
`tool_name`, `tool_payload_key`; of ours: `expected_content`, and `grade_content` which makes it part of the reward.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cascade_jax.reward.document import DocumentError, depth, parse
from cascade_jax.reward.tool_call import same_value
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample, ToolCall

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_MAX_DEPTH = 64
_ONE_SCHEMA = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SCHEMA_LISTS = ("prefixItems", "anyOf", "oneOf")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True)
class StructuredOutput:
    """1 if the answer parses, fits the strict schema and, where the row grades content, holds the expected content."""

    strip_fence: bool = False  # forgive a code fence around the answer

    def verify(self, row: Row, sample: Sample) -> Verdict:
        try:
            schema, validator = compiled(row.fields["schema_str"])
        except (KeyError, TypeError, ValueError) as error:
            return unjudged(f"schema_str cannot be used: {error}")
        early = unanswered(sample)
        if early is not None:
            return early
        try:
            value = self._payload(row, sample, schema)
        except DocumentError as error:
            return wrong(f"does not parse: {error}")
        try:
            fault = next(validator.iter_errors(value), None)
        except RecursionError:
            return unjudged("schema_str refers to itself without end")
        valid = fault is None
        components = {"valid": float(valid)}
        info = {} if fault is None else {"reason": f"breaks the schema at {fault.json_path}: {fault.message[:200]}"}
        reward = float(valid)
        if "expected_content" in row.fields:
            components["content_match"] = content_match(row.fields["expected_content"], value)
            if row.fields.get("grade_content"):
                reward *= float(components["content_match"] == 1.0)
        return Verdict(reward, components, info)

    def _payload(self, row: Row, sample: Sample, schema: Mapping[str, Any]) -> Any:
        reply = reply_of(sample)
        if row.fields.get("response_mode", "text") == "tool_call":
            if reply.malformed is not None:
                raise DocumentError(f"malformed reply, {reply.malformed}")
            value = _tool_payload(reply.tool_calls, row.fields["tool_name"], row.fields.get("tool_payload_key"))
        else:
            text = _without_fence(reply.content) if self.strip_fence else reply.content
            value = parse(text.strip(), row.fields.get("schema_type", "json"), schema)
        if depth(value) > _MAX_DEPTH:
            raise DocumentError(f"nested deeper than {_MAX_DEPTH}")
        return value


def content_match(expected: Any, value: Any) -> float:
    """Expected leaves that stand at their place, over the larger count of leaves; 1 only for equal content."""
    if same_value(expected, value):
        return 1.0
    wanted, found = dict(_leaves(expected, ())), dict(_leaves(value, ()))
    hits = sum(path in found and same_value(leaf, found[path]) for path, leaf in wanted.items())
    # Unequal content never counts as whole, e.g. where the difference is an empty list.
    return min(hits / max(len(wanted), len(found), 1), 0.99)


def _leaves(value: Any, path: tuple) -> list[tuple[tuple, Any]]:
    if isinstance(value, Mapping):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    if isinstance(value, (list, tuple)):
        return [leaf for i, inner in enumerate(value) for leaf in _leaves(inner, (*path, i))]
    return [(path, value)]


@functools.lru_cache(maxsize=4096)
def compiled(schema_text: str) -> tuple[dict[str, Any], "Draft202012Validator"]:
    """The strict schema and its validator. ValueError: no JSON object, not a schema, a reference outside the schema."""
    import jsonschema
    import referencing

    schema = json.loads(schema_text)
    if not isinstance(schema, dict):
        raise ValueError("it is not a JSON object")
    _refuse_remote(schema)
    strict = make_strict(schema)
    try:
        jsonschema.Draft202012Validator.check_schema(strict)
    except jsonschema.SchemaError as error:
        raise ValueError(f"it is not a JSON Schema: {error.message}") from None
    # An empty registry: nothing is ever fetched.
    return strict, jsonschema.Draft202012Validator(strict, registry=referencing.Registry(), format_checker=_formats())


@functools.lru_cache(maxsize=1)
def _formats() -> Any:
    """Only formats that are checked alike on every machine; jsonschema's own set depends on what else is installed."""
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=("date", "email", "ipv4", "ipv6", "uuid"))

    @checker.checks("date-time", raises=ValueError)
    def is_date_time(value: object) -> bool:
        return not isinstance(value, str) or ("T" in value.upper() and datetime.fromisoformat(value).tzinfo is not None)

    return checker


def make_strict(schema: Any, *, closed: bool = True) -> Any:
    """A copy in which every object has all of its properties and no others, at every level."""
    if not isinstance(schema, Mapping):
        return schema
    strict = dict(schema)
    for key in _ONE_SCHEMA:
        if key in strict:
            strict[key] = make_strict(strict[key])
    for key in _SCHEMA_LISTS:
        if key in strict:
            strict[key] = [make_strict(part) for part in strict[key]]
    for key in _SCHEMA_MAPS:
        if key in strict:
            strict[key] = {name: make_strict(part) for name, part in strict[key].items()}
    if "allOf" in strict:
        # Each part sees the properties of the others, so only the whole can be closed.
        strict["allOf"] = [make_strict(part, closed=False) for part in strict["allOf"]]
    if "properties" in strict:
        strict["required"] = list(strict["properties"])
    if closed and ("properties" in strict or "allOf" in strict):
        strict["unevaluatedProperties" if "allOf" in strict else "additionalProperties"] = False
    return strict


def _refuse_remote(schema: Any) -> None:
    if isinstance(schema, Mapping):
        target = schema.get("$ref", schema.get("$dynamicRef", "#"))
        if isinstance(target, str) and not target.startswith("#"):
            raise ValueError(f"$ref {target!r} points outside the schema; put the definition under $defs")
        for inner in schema.values():
            _refuse_remote(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _refuse_remote(inner)


def _tool_payload(calls: tuple[ToolCall, ...], name: str, key: str | None) -> Any:
    if [call.name for call in calls] != [name]:
        raise DocumentError(f"one call of {name} is expected, there are {[call.name for call in calls]}")
    arguments = calls[0].arguments
    if not key:
        return dict(arguments)
    if set(arguments) != {key}:
        raise DocumentError(f"the call has the arguments {sorted(arguments)}, expected is {key} alone")
    return arguments[key]


def _without_fence(text: str) -> str:
    lines = text.strip().splitlines()
    fenced = len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text
