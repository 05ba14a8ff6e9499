"""Structured output: the whole answer must parse and fit the row's JSON Schema, made strict.

Row fields (NeMo-Gym): `schema_str`, `schema_type` (json, yaml, xml, toml, csv), `response_mode` (text, tool_call),
`tool_name`, `tool_payload_key`; of ours: `expected_content`, and `grade_content` which makes it part of the reward.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cascade_jax.reward.document import DocumentError, bounded, parse
from cascade_jax.reward.tool_call import format_fault, same_value
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged, wrong
from cascade_jax.types import Row, Sample, ToolCall

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_CHILDREN = ("items", "additionalProperties", "contains", "propertyNames")
_CHILD_MAPS = ("properties", "patternProperties")
_PARTS = ("anyOf", "oneOf", "$ref", "then", "else", "dependentSchemas")  # of the same object, as allOf
_OPEN = ".open"  # ends the name of a definition that its user closes


@dataclass(frozen=True)
class StructuredOutput:
    """1 if the answer parses, fits the strict schema and, where the row grades content, holds the expected content."""

    strip_fence: bool = False  # forgive a code fence around the answer

    def verify(self, row: Row, sample: Sample) -> Verdict:
        from referencing.exceptions import Unresolvable

        try:
            schema, validator = compiled(row.fields["schema_str"])
        except (KeyError, TypeError, ValueError) as error:
            return unjudged(f"schema_str cannot be used: {error}")
        if (early := unanswered(sample)) is not None:
            return early
        try:
            value = self._payload(row, sample, schema)
            fault = next(validator.iter_errors(value), None)
        except DocumentError as error:
            return wrong(f"does not parse: {error}")
        except (ValueError, RecursionError, Unresolvable) as error:
            return unjudged(f"the row cannot be used: {error}")
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
            if (fault := format_fault(reply)) is not None:
                raise DocumentError(f"malformed reply, {fault}")
            value = _tool_payload(reply.tool_calls, row.fields.get("tool_name"), row.fields.get("tool_payload_key"))
        else:
            text = _without_fence(reply.content) if self.strip_fence else reply.content
            value = parse(text.strip(), row.fields.get("schema_type", "json"), schema)
        return bounded(value)


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
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"it is not a JSON Schema: {error.message[:200]}") from None
    strict = make_strict(schema)
    # An empty registry: nothing is ever fetched.
    return strict, _validator_class()(strict, registry=referencing.Registry(), format_checker=_formats())


@functools.lru_cache(maxsize=1)
def _validator_class() -> Any:
    """The validator of draft 2020-12, with uniqueItems in linear time: the library's takes minutes on long answers."""
    from jsonschema import Draft202012Validator, ValidationError, validators

    def unique_items(validator: Any, unique: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if unique and isinstance(value, list) and len({_hashable(item) for item in value}) < len(value):
            yield ValidationError("an item is repeated")

    return validators.extend(Draft202012Validator, {"uniqueItems": unique_items})


def _hashable(value: Any) -> Any:
    """Equal for equal JSON values: 1 and 1.0 are, 1 and True are not."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return tuple(_hashable(inner) for inner in value)
    return (bool, value) if isinstance(value, bool) else value


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
    """A copy in which every object has all of its properties and no others, at every level.

    Conditions (`if`, `not`) stay as they are: stricter ones would hold less often. An object that is described in parts
    is closed as a whole, since each part sees the properties of the others; `closed` is False for such a part.
    """
    if not isinstance(schema, Mapping):
        return schema
    strict = dict(schema)
    in_parts = "allOf" in schema or ("properties" in schema and any(key in schema for key in _PARTS))
    whole = closed and not in_parts
    for key, part in schema.items():
        if key in _CHILDREN:
            strict[key] = make_strict(part)
        elif key in _CHILD_MAPS:
            strict[key] = {name: make_strict(inner) for name, inner in part.items()}
        elif key == "prefixItems":
            strict[key] = [make_strict(inner) for inner in part]
        elif key in ("allOf", "anyOf", "oneOf"):
            strict[key] = [make_strict(inner, closed=whole) for inner in part]
        elif key in ("then", "else"):
            strict[key] = make_strict(part, closed=whole)
        elif key == "dependentSchemas":
            strict[key] = {name: make_strict(inner, closed=False) for name, inner in part.items()}
        elif key in ("$defs", "definitions"):
            strict[key] = {name: make_strict(inner) for name, inner in part.items()}
            strict[key] |= {name + _OPEN: make_strict(inner, closed=False) for name, inner in part.items()}
        elif key == "$ref" and not whole and part.rpartition("/")[0] in ("#/$defs", "#/definitions"):
            strict[key] = part + _OPEN
    if "properties" in schema:
        strict["required"] = list(schema["properties"])
        strict.pop("additionalProperties", None)
    if closed and (in_parts or "properties" in schema):
        strict["unevaluatedProperties" if in_parts else "additionalProperties"] = False
    return strict


def _refuse_remote(schema: Any) -> None:
    if isinstance(schema, Mapping):
        for key in ("$ref", "$dynamicRef"):
            target = schema.get(key, "#")
            if isinstance(target, str) and not target.startswith("#"):
                raise ValueError(f"{key} {target!r} points outside the schema; put the definition under $defs")
        for inner in schema.values():
            _refuse_remote(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _refuse_remote(inner)


def _tool_payload(calls: tuple[ToolCall, ...], name: str | None, key: str | None) -> Any:
    made = [call.name for call in calls]
    if len(made) != 1 or (name and made != [name]):
        raise DocumentError(f"one call of {name or 'a tool'} is expected, there are {made}")
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
