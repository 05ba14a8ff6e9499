"""Text in JSON, YAML, XML, TOML or CSV as JSON values. XML and CSV know only text, so they are read along a schema."""

import csv
import io
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any

_MAX_CHARS = 65_536
_MAX_DEPTH = 64
_MAX_NUMBER = 10**100  # what is computed with larger ones overflows, or cannot be written any more
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


def bounded(value: Any) -> Any:
    """The value itself. DocumentError: too deep, or a number in it is too large, infinite or not a number.

    Iterative, so that deep values cannot exhaust the stack.
    """
    stack = [(value, 0)]
    while stack:
        node, level = stack.pop()
        if level > _MAX_DEPTH:
            raise DocumentError(f"nested deeper than {_MAX_DEPTH}")
        if isinstance(node, (int, float)) and not -_MAX_NUMBER < node < _MAX_NUMBER:  # false for NaN too
            raise DocumentError("a number is too large or none")
        if isinstance(node, Mapping):
            stack += [(inner, level + 1) for inner in node.values()]
        elif isinstance(node, list):
            stack += [(inner, level + 1) for inner in node]
    return value


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

    if _open_brackets(text) > _MAX_DEPTH:  # PyYAML takes quadratic time to find out
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
    # A key of many parts, a.b.c, takes tomllib quadratic time.
    if max(part.count(".") for part in re.split(r"[=\n\[\]{},]", text)) > _MAX_DEPTH:
        raise DocumentError("nested too deep")
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
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise DocumentError(f"{type(value).__name__} is not a JSON value")


def _xml(text: str, schema: Mapping[str, Any]) -> Any:
    from xml.parsers.expat import ExpatError

    import xmltodict

    try:
        document = xmltodict.parse(text)  # refuses entity declarations
    except (ExpatError, ValueError) as error:
        raise DocumentError(str(error)) from None
    (name, inside), *_ = document.items()
    # XML needs a root element: it is the schema's only property, or stands for the object itself.
    properties = {key for view in _views(schema, schema) for key in view.get("properties", ())}
    return _typed(document if properties == {name} else inside, schema, schema)


def _csv(text: str, schema: Mapping[str, Any]) -> Any:
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except (csv.Error, ValueError) as error:
        raise DocumentError(str(error)) from None
    if not rows or any(len(row) != len(header) for row in rows) or len(set(header)) != len(header):
        raise DocumentError("it needs a header and rows of the same number of cells")
    records = [dict(zip(header, row, strict=True)) for row in rows]
    if "object" not in _kinds(_views(schema, schema)):
        return _typed(records, {"type": "array", **schema}, schema)
    if len(records) != 1:
        raise DocumentError(f"one row is expected, there are {len(records)}")
    return _typed(records[0], schema, schema)


def _typed(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Text turned into what the schema asks for at this place; what does not fit stays, for the validator to refuse."""
    views = _views(schema, root)
    kinds = _kinds(views)
    if isinstance(value, dict) and "array" not in kinds:
        return {key: _typed(inner, _at(views, key), root) for key, inner in value.items()}
    if "array" in kinds:
        items = {"anyOf": [view["items"] for view in views if "items" in view]}
        if value is None:
            return []
        if isinstance(value, dict) and len(value) == 1:  # <tags><tag>a</tag><tag>b</tag></tags>
            (key, inside), *_ = value.items()
            value = value if _at(_views(items, root), key)["anyOf"] else inside
        values = value if isinstance(value, list) else [value]
        return [_typed(inner, items, root) for inner in values]
    if value is None or value == "":
        return None if "null" in kinds else "" if "string" in kinds else value
    return _scalar(value, kinds) if isinstance(value, str) else value


def _scalar(text: str, kinds: set[str]) -> Any:
    if "integer" in kinds and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in kinds and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in kinds and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    return text


def _views(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All schemas that speak of one place: itself, what it refers to, its parts and its alternatives."""
    found: list[Mapping[str, Any]] = []
    waiting = [schema]
    while waiting:
        view = waiting.pop(0)
        if isinstance(view, Mapping) and not any(view is other for other in found):
            found.append(view)
            waiting += [part for key in ("allOf", "anyOf", "oneOf") for part in view.get(key, ())]
            waiting += [view[key] for key in ("then", "else") if key in view]
            waiting.append(_target(view["$ref"], root) if "$ref" in view else None)
    return found


def _target(reference: str, root: Any) -> Any:
    """What a reference inside the schema points at; None where there is nothing."""
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _at(views: list[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The schema of a property, out of all views of its object."""
    return {"anyOf": [view["properties"][key] for view in views if key in view.get("properties", ())]}


def _kinds(views: list[Mapping[str, Any]]) -> set[str]:
    """The types that the value may have; where none is named, those of the values that are listed."""
    named = [view["type"] for view in views if "type" in view]
    kinds = {kind for names in named for kind in ([names] if isinstance(names, str) else names)}
    listed = [
        value for view in views for value in [*view.get("enum", ()), *([view["const"]] if "const" in view else ())]
    ]
    return kinds or {_KINDS.get(type(value), "") for value in listed}


_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "toml": _toml,
    "csv": _csv,
}
