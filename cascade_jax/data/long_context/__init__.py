"""Rows with long prompts, generated at any length: needles, variables, words, documents, graphs.

A generator is a function (rng, tokens, prose) -> Draft: a task that is then filled up to its number of tokens.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cascade_jax.data.long_context import documents, graph, needles, tracking
from cascade_jax.data.long_context.fill import Draft, LineCounter, filled
from cascade_jax.data.rows import to_record
from cascade_jax.seeding import derive
from cascade_jax.types import Row

GENERATORS: dict[str, Callable[[np.random.Generator, int, Sequence[str]], Draft]] = {
    "needle": needles.single,
    "needle_multi_key": needles.multi_key,
    "needle_among_needles": needles.multi_key_only,
    "needle_multi_value": needles.multi_value,
    "needle_multi_query": needles.multi_query,
    "variables": tracking.variables,
    "common_words": tracking.common_words,
    "documents": documents.answer,
    "documents_choice": documents.choice,
    "documents_judged": documents.judged,
    "graph_parents": graph.parents,
}


class LongRows(Sequence[Row]):
    """`count` rows of one task, each made when it is asked for: a row of a million tokens has some megabytes.

    Their user message has `tokens` tokens, or fewer by less than a line; the template adds its own. `encode` is the
    tokenizer's. `prose`: lines of a text to hide needles in, in place of noise. The same seed gives the same rows.
    ValueError: an unknown task, or too few tokens for what has to be in the prompt.
    """

    def __init__(
        self,
        task: str,
        count: int,
        *,
        tokens: int,
        encode: Callable[[str], list[int]],
        seed: int = 0,
        prose: Sequence[str] = (),
    ):
        if task not in GENERATORS:
            raise ValueError(f"the long-context task {task!r} does not exist; choose one of {', '.join(GENERATORS)}.")
        self._task, self._count, self._tokens, self._seed = task, count, tokens, seed
        self._size_of = LineCounter(encode)
        self._prose = [line.strip() + "\n" for line in prose if line.strip()]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        number = index % self._count
        rng = np.random.default_rng(derive(self._seed, "long_context", self._task, self._tokens, number))
        draft = GENERATORS[self._task](rng, self._tokens, self._prose)
        text, size = filled(draft, self._tokens, self._size_of, rng)
        return Row(
            id=f"{self._task}-{self._tokens}-{self._seed}-{number}",
            kind=draft.kind,
            messages=({"role": "user", "content": text},),
            fields=dict(draft.fields),
            extra={"task": self._task, "tokens": size},
        )


def write(path: str | Path, rows: Iterable[Row]) -> int:
    """Rows as JSON lines, one at a time; how many."""
    with Path(path).open("w", encoding="utf-8") as file:
        return sum(1 for row in rows if file.write(json.dumps(to_record(row), ensure_ascii=False) + "\n"))
