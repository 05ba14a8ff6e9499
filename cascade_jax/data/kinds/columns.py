"""What several kinds check in the same way. Every function gives ValueError, the end of a sentence that begins with the
place of the row."""

import json
from collections.abc import Mapping
from typing import Any


class NoSignal(ValueError):
    """A row that is whole but holds nothing to grade an answer by; it is dropped and counted, and is no fault."""


def text(fields: Mapping[str, Any], name: str, *, needed: bool = False) -> dict[str, str]:
    """{name: text}, or {} where the column is absent and not `needed`."""
    value = fields.get(name)
    if value is None and not needed:
        return {}
    if not isinstance(value, str) or (needed and not value.strip()):
        raise ValueError(f"{name} must be a text{' that is not empty' if needed else ''}")
    return {name: value}


def parsed(value: Any, name: str) -> Any:
    """The value of a column that comes as JSON or as the JSON text of it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from None


def texts(value: Any, name: str) -> list[str]:
    """A list of texts; it comes as one, or as its JSON text. None and an empty text are the empty list."""
    value = parsed(value or [], name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{name} must be a list of texts or the JSON text of one")
    return value


def texts_by_name(value: Any, name: str) -> dict[str, str]:
    """{name: text}; it comes as such an object, as its JSON text, or as a list of [name, text] or {name, content}."""
    value = parsed(value or {}, name)
    if isinstance(value, list):
        pairs = [(item.get("name"), item.get("content")) if isinstance(item, Mapping) else item for item in value]
        if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise ValueError(f"{name} must name every text in it")
        value = dict(pairs)
    if not isinstance(value, Mapping) or not all(isinstance(content, str) for content in value.values()):
        raise ValueError(f"{name} must be an object of texts, by name, or the JSON text of one")
    return dict(value)


def number(fields: Mapping[str, Any], name: str) -> dict[str, float]:
    """{name: number > 0}, or {} where the column is absent."""
    value = fields.get(name)
    if value is None:
        return {}
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be a number above 0")
    return {name: value}


def choice(fields: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """{name: one of `allowed`}; the first of them where the column is absent."""
    value = fields.get(name, allowed[0])
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
    return {name: value}
