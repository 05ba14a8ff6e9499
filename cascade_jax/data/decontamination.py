"""Rows that a benchmark has seen: shared runs of n words, or the same address (Nemotron-Cascade 1, s3.2 and s4.6)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_jax.types import Row

_WORD = re.compile(r"\w+")
_URL = re.compile(r"https?://[^\s\"'<>)\]}]+")
_QUESTIONS = ("prompt", "question", "problem", "problem_statement", "question_content", "instruction", "input", "text")
_TEMPLATE_SHARE = 0.1


@dataclass(frozen=True)
class Benchmark:
    """What must not be trained on. grams: runs of n words of its prompts; short: whole prompts of fewer words."""

    n: int
    grams: set[int]
    short: set[int]
    urls: set[str]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any] | Row], n: int) -> "Benchmark":
        """Of benchmark rows or records of any shape. Runs that many prompts share are its template and do not count."""
        if n < 1:
            raise ValueError(f"n={n} must be 1 or more words.")
        short, prompts = set(), 0
        grams, urls = Counter[int](), Counter[str]()
        for record in records:
            prompts += 1
            words = _words(question(record))
            grams.update(_grams(words, n))
            urls.update(addresses(record))
            if 0 < len(words) < n:
                short.add(hash(words))
        rare = max(2, _TEMPLATE_SHARE * prompts)
        return cls(n, {g for g, count in grams.items() if count <= rare}, short, {u for u in urls if urls[u] <= rare})

    def fault(self, row: Row) -> str | None:
        """Why the row must go, else None."""
        words = _words(question(row))
        if len(words) < self.n:
            return "a short prompt of the benchmark" if hash(words) in self.short and words else self._address(row)
        if self.grams & _grams(words, self.n):
            return f"{self.n} words in a row of a benchmark's prompt"
        return self._address(row)

    def _address(self, row: Row) -> str | None:
        return "the address of a benchmark's problem" if self.urls & addresses(row) else None


def question(record: Mapping[str, Any] | Row) -> str:
    """What the user asks, without system texts, which many rows share."""
    if isinstance(record, Row):
        return "\n".join(message["content"] for message in record.messages if message["role"] == "user")
    return "\n".join(record[name] for name in _QUESTIONS if isinstance(record.get(name), str))


def addresses(record: Mapping[str, Any] | Row) -> set[str]:
    """Every URL of a page (not of a whole site) in prompt and columns, without scheme, www, query and last slash."""
    values = (record.messages, record.fields, record.extra) if isinstance(record, Row) else record
    found = {_address(url) for text in _texts(values) for url in _URL.findall(text)}
    return {address for address in found if "/" in address}


def _address(url: str) -> str:
    bare = re.split(r"[?#]", url.partition("://")[2])[0]
    return bare.lower().removeprefix("www.").rstrip("/.,;:")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _grams(words: tuple[str, ...], n: int) -> set[int]:
    return {hash(words[i : i + n]) for i in range(len(words) - n + 1)}
