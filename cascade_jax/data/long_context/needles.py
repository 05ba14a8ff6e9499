"""Needles in a haystack (RULER's four kinds, arXiv 2404.06654): lines with a key and a number, among other text."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from cascade_jax.data.long_context.fill import Draft
from cascade_jax.data.long_context.names import name, noise

_HEAD = "The text below holds notes that give secret numbers. Read it with care; a question about them follows.\n"
_DECOYS = ("The meter by the door reads {}.\n", "On the ticket stands {}, and nobody has come for it.\n")
_NUMBER = r"(?<!\d)\d{7}(?!\d)"  # what looks like an answer


def single(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """One needle."""
    return _draft(rng, prose, keys=1)


def multi_key(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """One needle among three of other keys."""
    return _draft(rng, prose, keys=4)


def multi_key_only(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """One needle in a haystack of needles."""
    return _draft(rng, prose, keys=1, others=True)


def multi_value(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """Four numbers of one key, all of them asked for."""
    return _draft(rng, prose, keys=1, values=4)


def multi_query(rng: np.random.Generator, tokens: int, prose: Sequence[str]) -> Draft:
    """Four keys, the numbers of all of them asked for."""
    return _draft(rng, prose, keys=4, asked=4)


def _draft(
    rng: np.random.Generator, prose: Sequence[str], *, keys: int, values: int = 1, asked: int = 1, others: bool = False
) -> Draft:
    names = [name(rng) for _ in range(keys)]
    while len(set(names)) < keys:
        names = [name(rng) for _ in range(keys)]
    drawn = [str(number) for number in 10**6 + rng.choice(9 * 10**6, keys * values + len(_DECOYS), replace=False)]
    numbers, rest = drawn[: keys * values], drawn[keys * values :]
    needles = [_line(names[i // values], number) for i, number in enumerate(numbers)]
    # Numbers that are no secret, so that to name every number is to name a wrong one; not among a real text.
    decoys = [] if prose else [line.format(number) for line, number in zip(_DECOYS, rest, strict=True)]
    wanted, answers = names[:asked], numbers[: asked * values]
    question = f"Which secret numbers does the text give for {' and for '.join(wanted)}? Answer with the numbers alone."
    return Draft(
        head=_HEAD,
        pieces=(*needles, *decoys),
        filler=_strangers(rng, set(names), set(numbers)) if others else _prose(rng, prose),
        tail=question,
        fields={"expected_answer": answers, "grading_mode": "all", "candidates": _NUMBER, "question": question},
    )


def _line(key: str, number: str) -> str:
    return f"A secret number of {key} is {number}.\n"


def _prose(rng: np.random.Generator, prose: Sequence[str]) -> Iterator[str]:
    """The given lines from a random one on, or noise."""
    if not prose:
        return noise(rng)
    start = int(rng.integers(len(prose)))
    return itertools.chain(prose[start:], itertools.cycle(prose))


def _strangers(rng: np.random.Generator, names: set[str], numbers: set[str]) -> Iterator[str]:
    while True:
        key, number = name(rng), str(rng.integers(10**6, 10**7))
        if key not in names and number not in numbers:
            yield _line(key, number)
