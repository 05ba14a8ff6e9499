"""The gold patch applied, and an answer as a patch."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_jax.reward.swe.instance import InstanceError


def patched(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """The whole new text of each of `files` that a unified diff changes. InstanceError: the diff does not fit them."""
    import unidiff

    try:
        parts = unidiff.PatchSet(patch.splitlines(keepends=True))
    except unidiff.UnidiffParseError as error:
        raise InstanceError(f"the gold patch cannot be read: {error}") from None
    return {part.path: _applied(files[part.path], part) for part in parts if part.path in files}


def _applied(text: str, hunks: Sequence[Any]) -> str:
    old = text.splitlines(keepends=True)
    new: list[str] = []
    done = 0
    for hunk in hunks:
        # A hunk that only adds names the line before it.
        start = hunk.source_start - (1 if hunk.source_length else 0)
        gone = [line.value for line in hunk if line.is_context or line.is_removed]
        if start < done or [line.rstrip("\n") for line in old[start : start + len(gone)]] != [
            line.rstrip("\n") for line in gone
        ]:
            raise InstanceError("the gold patch does not fit the files of the row")
        new += old[done:start]
        new += [line.value for line in hunk if line.is_context or line.is_added]
        done = start + len(gone)
    return "".join(new + old[done:])


def difference(files: Mapping[str, str], changed: Mapping[str, str]) -> str:
    """The unified diff from `files` to those of them that are `changed`."""
    parts = [
        "".join(
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(
                files[path].splitlines(keepends=True),
                changed[path].splitlines(keepends=True),
                f"a/{path}",
                f"b/{path}",
            )
        )
        for path in sorted(changed)
    ]
    return "".join(parts)
