"""Whether what a program gave is right. All of this runs outside the sandbox of the program.

A checker is "tokens", "lines", "unordered", or the source of a Python function check(input, output, answer) -> score
from 0 to 1, which runs in a sandbox of its own.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TOLERANCE = 1e-6  # of decimal numbers, absolute or relative
_INTEGER = re.compile(r"[+-]?\d{1,4000}")
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?")


def same_tokens(output: str, answer: str) -> bool:
    """Word by word. Decimal numbers of the answer are met within the tolerance, integers exactly."""
    ours, theirs = output.split(), answer.split()
    return len(ours) == len(theirs) and all(map(_same_token, ours, theirs))


def same_lines(output: str, answer: str) -> bool:
    """Exactly, but for spaces at the ends of lines and empty lines at the end."""
    return _lines(output) == _lines(answer)


def same_lines_in_any_order(output: str, answer: str) -> bool:
    """As `same_lines`, sorted."""
    return sorted(_lines(output)) == sorted(_lines(answer))


COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "tokens": same_tokens,
    "lines": same_lines,
    "unordered": same_lines_in_any_order,
}


def same_values(result: Any, answer: Any) -> bool:
    """A function's result against the JSON value that is expected: tuples count as lists, keys as texts."""
    if isinstance(answer, bool) or answer is None or isinstance(answer, str):
        return type(result) is type(answer) and result == answer
    if isinstance(answer, (int, float)):
        if isinstance(result, bool) or not isinstance(result, (int, float)):
            return False
        if isinstance(answer, int) and isinstance(result, int):
            return result == answer
        return _close(float(result), float(answer))
    if isinstance(answer, Sequence):
        if not isinstance(result, (list, tuple)) or len(result) != len(answer):
            return False
        return all(map(same_values, result, answer))
    if not isinstance(result, Mapping) or len(result) != len(answer):
        return False
    named = {str(key): value for key, value in result.items()}
    return named.keys() == answer.keys() and all(same_values(named[key], answer[key]) for key in answer)


def read_result(text: bytes) -> Any:
    """What a function returned, out of the text that its sandbox wrote. ValueError: there is none that can be read."""
    try:
        return json.loads(text, object_hook=_named)
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ValueError(f"the result cannot be read: {type(error).__name__}") from None


def _named(found: dict[str, Any]) -> Any:
    ((name, items),) = found.items()
    return {"tuple": tuple, "set": set, "dict": dict}[name](items)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_token(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    if not _NUMBER.fullmatch(ours) or not _NUMBER.fullmatch(theirs):
        return False
    if _INTEGER.fullmatch(theirs):
        return _INTEGER.fullmatch(ours) is not None and int(ours) == int(theirs)
    return _close(float(ours), float(theirs))


def _close(ours: float, theirs: float) -> bool:
    if math.isnan(theirs):
        return math.isnan(ours)
    return ours == theirs or math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
