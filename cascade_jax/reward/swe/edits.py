"""Answers of agentless repair: SEARCH/REPLACE blocks, parsed and applied (Cascade 1 paper, C.2).

    ```python
    ### path/to/file.py
    <<<<<<< SEARCH
    the lines as they are
    =======
    the lines as they should be
    >>>>>>> REPLACE
    ```

Any number of files and of blocks; a path holds until the next one. Lines match exactly, indentation included.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_FENCE = re.compile(r"^(`{3,}|~{3,})")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_PATH = re.compile(r"^###\s+(\S.*?)\s*$")
_SEARCH, _MIDDLE, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


class Unparsable(ValueError):
    """The answer holds no edit, or one that does not keep the format."""


class Inapplicable(ValueError):
    """The edits keep the format and cannot be made: the text to replace is not there, or not there once."""


class Edit(NamedTuple):
    path: str
    search: tuple[str, ...]  # whole lines, without their ends
    replace: tuple[str, ...]


def parse_edits(answer: str) -> list[Edit]:
    """The edits in the fenced blocks of an answer. Unparsable: there is none, or one is broken."""
    edits: list[Edit] = []
    for block in _fenced(answer):
        if _SEARCH in block or any(_PATH.match(line) for line in block[:1]):
            edits += _edits_of(block)
    if not edits:
        raise Unparsable("no fenced block with ### path and <<<<<<< SEARCH")
    return edits


def apply_edits(files: Mapping[str, str], edits: list[Edit]) -> dict[str, str]:
    """The whole new text of each file that differs afterwards, each edit made on what those before it left.

    Inapplicable: an unknown file, lines that are not there or there more than once, or an edit that changes nothing.
    """
    texts = dict(files)
    for edit in edits:
        if edit.path not in texts:
            raise Inapplicable(f"there is no file {edit.path} among those shown")
        if edit.search == edit.replace:
            raise Inapplicable(f"an edit of {edit.path} changes nothing")
        texts[edit.path] = _replaced(texts[edit.path], edit)
    return {path: text for path, text in texts.items() if text != files[path]}


def _fenced(answer: str) -> Iterator[list[str]]:
    """The lines inside of each code fence. Unparsable: the last one is not closed."""
    inside: list[str] | None = None
    fence = ""
    in_edit = False  # a fence among the lines of an edit belongs to these
    for line in answer.replace("\r\n", "\n").split("\n"):
        mark = _FENCE.match(line)
        if inside is None:
            if mark:
                inside, fence, in_edit = [], mark[1], False
        elif not in_edit and line.rstrip() == fence:
            yield inside
            inside = None
        else:
            in_edit = line.rstrip() != _REPLACE and (in_edit or line.rstrip() == _SEARCH)
            inside.append(line)
    if inside is not None:
        raise Unparsable("a code fence is not closed")


def _edits_of(block: list[str]) -> Iterator[Edit]:
    path = ""
    lines = iter(block)
    for line in lines:
        named = _PATH.match(line)
        if named:
            path = named[1]
        elif line.rstrip() == _SEARCH:
            if not path:
                raise Unparsable("an edit has no line ### path before it")
            search, replace = _until(lines, _MIDDLE), _until(lines, _REPLACE)
            if not any(line.strip() for line in search):
                raise Unparsable(f"an edit of {path} searches for nothing")
            yield Edit(path, search, replace)
        elif line.strip():
            raise Unparsable(f"the line {line[:60]!r} belongs to no edit")


def _until(lines: Iterator[str], end: str) -> tuple[str, ...]:
    found: list[str] = []
    for line in lines:
        if line.rstrip() == end:
            return tuple(found)
        if line.rstrip() in (_SEARCH, _REPLACE):
            break
        found.append(line)
    raise Unparsable(f"a line {end} is missing")


def _replaced(text: str, edit: Edit) -> str:
    """Whole lines are matched, whatever their ends; the new ones end as the file's first line does."""
    lines = _LINE.findall(text)
    bare = [line.rstrip("\r\n") for line in lines]
    count = len(edit.search)
    places = [at for at in range(len(bare) - count + 1) if tuple(bare[at : at + count]) == edit.search]
    if len(places) != 1:
        raise Inapplicable(f"the lines to replace stand {len(places)} times in {edit.path}")
    at = places[0]
    ending = "\r\n" if lines[0].endswith("\r\n") else "\n"
    fresh = "".join(line + ending for line in edit.replace)
    if at + count == len(lines) and fresh and not lines[-1].endswith(("\r", "\n")):
        fresh = fresh[: -len(ending)]
    return "".join(lines[:at]) + fresh + "".join(lines[at + count :])
