"""Text in JSON, YAML, XML, TOML or CSV as JSON values. XML and CSV know only text, so they are read along a schema."""

import csv
import io
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any

_MAX_CHARS = 65_536
_MAX_BRACKETS = 64
_INTEGER = re.compile(r"[+-]?\d{1,300}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")


class DocumentError(ValueError):
    """The text is not a document of its format."""


def parse(text: str, kind: str, schema: Mapping[str, Any]) -> Any:
    """The document's value. DocumentError: it does not parse, is too large, repeats a key. ValueError: unknown kind."""
    if kind not in _PARSERS:
        raise ValueError(f"schema_type {kind!r} is unknown; allowed are {', '.join(_PARSERS)}")
    if len(text) > _MAX_CHARS:
        raise DocumentError(f"longer than {_MAX_CHARS} characters")
    try:
        return _PARSERS[kind](text, schema)
    except RecursionError:
        raise DocumentError("nested too deep") from None


def depth(value: Any) -> int:
    """Levels of nesting, 0 for a leaf. Iterative, so that deep values cannot exhaust the stack."""
    deepest, stack = 0, [(value, 0)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        if isinstance(node, Mapping):
            stack += [(inner, level + 1) for inner in node.values()]
        elif isinstance(node, list):
            stack += [(inner, level + 1) for inner in node]
    return deepest


def _json(text: str, schema: Mapping[str, Any]) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except ValueError as error:  # also integers of more digits than Python converts
        raise DocumentError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise DocumentError("a key is repeated")
    return made


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"{name} is not JSON")


def _yaml(text: str, schema: Mapping[str, Any]) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Without aliases, which can blow a few lines up to gigabytes, and without repeated keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise DocumentError("aliases are not allowed")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            made = super().construct_mapping(node, deep=deep)
            if isinstance(node, yaml.MappingNode) and len(made) < len(node.value):
                raise DocumentError("a key is repeated")
            return made

    if _open_brackets(text) > _MAX_BRACKETS:  # PyYAML takes quadratic time to find out
        raise DocumentError("nested too deep")
    try:
        return _plain(yaml.load(text, Loader))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise DocumentError(" ".join(str(error).split())[:200]) from None


def _open_brackets(text: str) -> int:
    """The most brackets that are open at one place, whether or not they stand in quotes."""
    depths = itertools.accumulate(1 if c in "[{" else -1 for c in text if c in "[]{}")
    return max(depths, default=0)


def _toml(text: str, schema: Mapping[str, Any]) -> Any:
    try:
        return _plain(tomllib.loads(text))
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _plain(value: Any) -> Any:
    """Dates as ISO text; anything else that JSON does not have is refused."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise DocumentError("a key is not text")
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise DocumentError(f"{value if isinstance(value, float) else type(value).__name__} is not a JSON value")


def _xml(text: str, schema: Mapping[str, Any]) -> Any:
    from xml.parsers.expat import ExpatError

    import xmltodict

    try:
        document = xmltodict.parse(text)  # refuses entity declarations
    except (ExpatError, ValueError) as error:
        raise DocumentError(str(error)) from None
    (root, inside), *_ = document.items()
    # XML needs a root element: it is the schema's only property, or stands for the object itself.
    return _typed(document if list(schema.get("properties", ())) == [root] else inside, schema)


def _csv(text: str, schema: Mapping[str, Any]) -> Any:
    one = schema.get("type") == "object"
    item = schema if one else schema.get("items", {})
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except (csv.Error, ValueError) as error:
        raise DocumentError(str(error)) from None
    if not rows or any(len(row) != len(header) for row in rows) or len(set(header)) != len(header):
        raise DocumentError("it needs a header and rows of the same number of cells")
    values = [
        {name: _typed(cell, _of(item, "properties").get(name, {})) for name, cell in zip(header, row, strict=True)}
        for row in rows
    ]
    if one and len(values) != 1:
        raise DocumentError(f"one row is expected, there are {len(values)}")
    return values[0] if one else values


def _typed(value: Any, schema: Any) -> Any:
    """Text turned into what the schema asks for at this place; what does not fit stays, for the validator to refuse."""
    kinds = _of(schema, "type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, dict) and "array" not in kinds:
        return {key: _typed(inner, _of(schema, "properties").get(key, {})) for key, inner in value.items()}
    if "array" in kinds:
        if isinstance(value, dict) and len(value) == 1:  # <tags><tag>a</tag><tag>b</tag></tags>
            (value,) = value.values()
        items = value if isinstance(value, list) else [] if value is None else [value]
        return [_typed(inner, _of(schema, "items")) for inner in items]
    if value is None or value == "":
        return None if "null" in kinds else "" if "string" in kinds else value
    return _scalar(value, kinds) if isinstance(value, str) else value


def _scalar(text: str, kinds: list[str]) -> Any:
    if "integer" in kinds and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in kinds and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def _of(schema: Any, key: str, default: Any = None) -> Any:
    return schema.get(key, {} if default is None else default) if isinstance(schema, Mapping) else default or {}


_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "toml": _toml,
    "csv": _csv,
}
