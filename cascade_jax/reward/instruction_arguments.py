"""Arguments of instructions: as published rows hold them, and as a check takes them."""

import inspect
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

Relation = Literal["less than", "at least"]
Count = Annotated[int, 0]  # with the least that it may be
Ordinal = Annotated[int, 1]

_ONE_WORD = re.compile(r"keyword\d*|word|phrase|first_word|last_word|end_phrase|letter")


class BadInstruction(ValueError):
    """A row whose instruction cannot be checked: unknown id; missing, unknown or impossible arguments."""


def tidy(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without nulls. Published rows hold whole numbers as floats, and single keywords in lists of one."""
    return {key: _tidy(key, value) for key, value in arguments.items() if value is not None}


def _tidy(key: str, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if _ONE_WORD.fullmatch(key) and isinstance(value, list) and len(value) == 1:
        return value[0]
    if key in ("keywords", "forbidden_words") and isinstance(value, str):
        return [value]
    return value


def require(name: str, arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    """BadInstruction unless `arguments` has all `parameters` without a default and no others, each of its type."""
    named = {key: p for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    missing = [key for key, p in named.items() if p.default is p.empty and key not in arguments]
    extra = [key for key in arguments if key not in named]
    if missing or (extra and len(named) == len(parameters)):
        wanted = list(named) or "no arguments"
        raise BadInstruction(f"instruction {name} takes {wanted}, the row gives {sorted(arguments)}")
    for key, value in arguments.items():
        if key in named and not _fits(value, named[key].annotation):
            raise BadInstruction(
                f"instruction {name} cannot be checked with {key}={value!r}; {_allowed(named[key].annotation)}"
            )


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is str:
        return isinstance(value, str) and bool(value.strip())
    if wanted is list:
        return isinstance(value, list) and all(_fits(one, str) for one in value)
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    at_least = wanted.__metadata__[0] if get_origin(wanted) is Annotated else -math.inf
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _allowed(wanted: Any) -> str:
    if wanted is str:
        return "it must be a text that is not blank"
    if wanted is list:
        return "it must be a list of texts that are not blank"
    if get_origin(wanted) is Literal:
        return f"allowed are {', '.join(map(repr, get_args(wanted)))}"
    at_least = f" from {wanted.__metadata__[0]} up" if get_origin(wanted) is Annotated else ""
    return f"it must be a whole number{at_least}"
