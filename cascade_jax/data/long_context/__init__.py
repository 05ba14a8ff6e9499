"""Rows with long prompts, generated at any length: needles, variables, words, documents, graphs.

A generator is a function (rng, tokens, prose) -> Draft: a task that is then filled up to its number of tokens.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

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


def generate(
    task: str,
    count: int,
    *,
    tokens: int,
    encode: Callable[[str], list[int]],
    seed: int = 0,
    prose: Sequence[str] = (),
) -> Iterator[Row]:
    """`count` rows whose user message has `tokens` tokens, or fewer by less than a line. The template adds its own.

    `encode` is the tokenizer's. `prose`: lines of a text to hide needles in, in place of noise. The same seed gives the
    same rows. ValueError: an unknown task, or too few tokens for what has to be in the prompt.
    """
    if task not in GENERATORS:
        raise ValueError(f"the long-context task {task!r} does not exist; choose one of {', '.join(GENERATORS)}.")
    counter = LineCounter(encode)
    prose = [line.strip() + "\n" for line in prose if line.strip()]
    for number in range(count):
        rng = np.random.default_rng(derive(seed, "long_context", task, tokens, number))
        draft = GENERATORS[task](rng, tokens, prose)
        text, size = filled(draft, tokens, counter, rng)
        yield Row(
            id=f"{task}-{tokens}-{seed}-{number}",
            kind=draft.kind,
            messages=({"role": "user", "content": text},),
            fields=dict(draft.fields),
            extra={"task": task, "tokens": size},
        )


def write(path: str | Path, rows: Iterable[Row]) -> int:
    """Rows as JSON lines, one at a time; how many."""
    with Path(path).open("w", encoding="utf-8") as file:
        return sum(1 for row in rows if file.write(json.dumps(to_record(row), ensure_ascii=False) + "\n"))
