"""Prompts of a wanted number of tokens, sized by counting each different line once.

A prompt is made of lines, and a tokenizer's pieces do not reach over the end of a line (every pre-tokenizer in use cuts
there), so lines that are counted one by one add up to the count of the whole, which is never tokenized.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cascade_jax.data.long_context.names import NOISE

_MISSES = 4  # lines in a row that are too long for what is left, after which crumbs take it up


@dataclass(frozen=True)
class Draft:
    """A task before it has a length. All texts end with a line's end, but `tail`.

    `pieces` have to be in the text: in this order if `ordered`, anywhere otherwise. `filler` is everything else,
    without end; `mixed`: its lines do not have to stay in their order. `crumbs` take up what no more filler fits into.
    """

    head: str
    pieces: tuple[str, ...]
    filler: Iterator[str]
    tail: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "long_context"
    ordered: bool = False
    mixed: bool = False
    crumbs: tuple[str, ...] = NOISE


class LineCounter:
    """Tokens of a line in the place where it will stand: after the end of another one."""

    def __init__(self, encode: Callable[[str], list[int]]):
        self._encode = encode
        self._before = len(encode("\n"))
        self._known: dict[str, int] = {}

    def __call__(self, line: str) -> int:
        if line not in self._known:
            self._known[line] = len(self._encode("\n" + line)) - self._before
        return self._known[line]


def filled(draft: Draft, tokens: int, count: LineCounter, rng: np.random.Generator) -> tuple[str, int]:
    """The text and its tokens: at most `tokens`, and fewer by less than the shortest of crumbs or filler.

    ValueError: not even head, pieces and tail fit.
    """
    fixed = sum(map(count, (draft.head, *draft.pieces, draft.tail)))
    if fixed > tokens:
        raise ValueError(f"tokens={tokens} is too few: question and needles alone take {fixed}.")
    left, misses = tokens - fixed, 0
    lines: list[str] = []
    for line in draft.filler:
        size = count(line)
        if size <= left:
            lines.append(line)
            left, misses = left - size, 0
        elif (misses := misses + 1) == _MISSES:
            break
    for line in sorted(draft.crumbs, key=count, reverse=True):
        more = left // count(line)
        lines += [line] * more
        left -= more * count(line)
    if draft.mixed:
        rng.shuffle(lines)
    pieces = list(draft.pieces)
    if not draft.ordered:
        rng.shuffle(pieces)
    places = np.sort(rng.integers(0, len(lines) + 1, len(pieces))).tolist()
    edges = [0, *places, len(lines)]
    stretches = [lines[a:b] for a, b in itertools.pairwise(edges)]
    body = itertools.chain(*((*before, piece) for before, piece in zip(stretches, pieces, strict=False)), stretches[-1])
    return "".join([draft.head, *body, draft.tail]), tokens - left
