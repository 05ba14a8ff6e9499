"""What a tool of the workplace is: a name, a JSON schema, and a function of a database and checked arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_jax.environment.workplace.tables import Database, Record

PAGES = {
    "page": {"type": "integer", "description": "Page of the results, from 1"},
    "page_size": {"type": "integer", "description": "Results on a page, 5 unless given"},
}
_MOST_ON_A_PAGE = 100


class ToolError(Exception):
    """The call cannot be carried out. The message goes back to the model, which may try again."""


@dataclass(frozen=True)
class Tool:
    """`run(database, **arguments)` gives JSON. Arguments are texts, those of PAGES whole numbers."""

    name: str
    description: str
    run: Callable[..., Any]
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form of `Row.tools`."""
        parameters = {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def __call__(self, database: Database, arguments: Mapping[str, Any]) -> Any:
        """JSON. ToolError: unknown, missing or ill-typed arguments, or what the function refuses."""
        given = {key: value for key, value in arguments.items() if value not in (None, "")}
        unknown = [key for key in given if key not in self.properties]
        if unknown:
            raise ToolError(f"{self.name} has no argument {unknown[0]!r}; it takes {', '.join(self.properties)}")
        missing = [key for key in self.required if key not in given]
        if missing:
            raise ToolError(f"{self.name} needs {', '.join(missing)}")
        return self.run(database, **{key: self._value(key, value) for key, value in given.items()})

    def _value(self, key: str, value: Any) -> str | int:
        """Texts, also where a number is given, and whole numbers, also where they come as text."""
        declared = self.properties[key]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ToolError(f"{key} must be a {declared['type']}")
        if declared["type"] == "integer":
            if not str(value).isdecimal() or not 1 <= int(value) <= 10**6:
                raise ToolError(f"{key} must be a whole number above 0")
            return int(value)
        if "enum" in declared and value not in declared["enum"]:
            raise ToolError(f"{key} must be one of {', '.join(declared['enum'])}")
        return str(value)


def text(description: str, *allowed: str) -> dict[str, Any]:
    """The schema of a text argument, out of a list where one is given."""
    return {"type": "string", "description": description} | ({"enum": list(allowed)} if allowed else {})


def record_of(database: Database, table: str, key: str) -> Record:
    """The record of this id. ToolError where there is none."""
    record = database.get(table, key)
    if record is None:
        raise ToolError(f"there is no {table.removesuffix('s')} with the id {key}")
    return record


def page_of(records: list[Record], name: str, page: int, page_size: int) -> dict[str, Any]:
    """One page of the records, the last one for a page beyond it."""
    size = min(page_size, _MOST_ON_A_PAGE)
    pages = -(-len(records) // size)
    page = max(1, min(page, pages))
    counts = {f"total_{name}": len(records), "page": page, "page_size": size, "total_pages": pages}
    return {name: records[(page - 1) * size : page * size], "pagination": counts}


def address(value: str) -> str:
    """An email address in lower case. ToolError where it is none."""
    name, at, host = value.strip().lower().partition("@")
    if not (name and at and "." in host.strip(".")):
        raise ToolError(f"{value!r} is not an email address")
    return f"{name}@{host}"
