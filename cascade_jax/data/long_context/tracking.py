"""Tasks that need the whole text: chains of variables, and the most frequent words (RULER, arXiv 2404.06654)."""

from collections.abc import Iterator, Sequence

import numpy as np

from cascade_jax.data.long_context.fill import Draft
from cascade_jax.data.long_context.names import WORD, noise, word

_HOPS = 4
_CHAINS = 3  # one of them is asked for
_COMMON = 10


def variables(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """A variable gets a value, four others get it from one another; all five are asked for. Two more chains mislead."""
    drawn: set[str] = set()
    while len(drawn) < _CHAINS * (_HOPS + 1):
        drawn.add("".join(chr(ord("A") + i) for i in rng.integers(26, size=5)))
    names = sorted(drawn)
    rng.shuffle(names)
    values = [str(value) for value in 10_000 + rng.choice(90_000, _CHAINS, replace=False)]
    chains = [names[i::_CHAINS] for i in range(_CHAINS)]
    steps = [list(_assignments(chain, value)) for chain, value in zip(chains, values, strict=True)]
    turns = rng.permutation(np.repeat(np.arange(_CHAINS), _HOPS + 1)).tolist()
    iterators = [iter(chain) for chain in steps]
    question = f"Which variables have the value {values[0]} in the end? Answer with their names alone."
    return Draft(
        head="The text below assigns values to variables. Follow them; a question about them follows.\n",
        pieces=tuple(next(iterators[turn]) for turn in turns),
        filler=noise(rng),
        tail=question,
        fields={
            "expected_answer": chains[0],
            "grading_mode": "all",
            "candidates": r"(?<!\w)[A-Z]{5}(?!\w)",
            "question": question,
        },
        ordered=True,
    )


def _assignments(chain: Sequence[str], value: str) -> Iterator[str]:
    for name, source in zip(chain, [value, *(f"VAR {name}" for name in chain)], strict=False):
        yield f"VAR {name} = {source}\n"


def common_words(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """A list of words; the ten that stand in it most often, four times as often as any other at least."""
    often = int(np.clip(tokens // 200, 4, 32))
    seldom = often // 8 or 1
    drawn: dict[str, None] = {}
    while len(drawn) < _COMMON:
        drawn[word(rng)] = None
    common = list(drawn)

    def others() -> Iterator[str]:
        seen = set(common)
        while True:
            fresh = word(rng)
            if fresh not in seen:
                seen.add(fresh)
                yield from [f"{fresh}\n"] * seldom

    question = f"Which {_COMMON} words stand in the list most often? Answer with these words alone."
    return Draft(
        head="Below is a list of words, one on each line. Some stand in it more often than others.\n",
        pieces=tuple(f"{name}\n" for name in common for _ in range(often)),
        filler=others(),
        tail=question,
        fields={
            "expected_answer": common,
            "grading_mode": "all",
            "candidates": rf"(?<!\w){WORD}(?!\w)",
            "question": question,
        },
        mixed=True,
        crumbs=(),
    )
