"""Endless, seeded streams over the rows of several domains, with a position that can be saved and set (Grain).

A stream visits domains in exact proportion to their weights at every moment (low discrepancy, no dice). Within a domain
it goes through all rows in an order that is shuffled anew for each epoch, or through them in that of a curriculum.
Position n depends on the arguments alone.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from cascade_jax.config import CurriculumConfig
from cascade_jax.data.curriculum import Order
from cascade_jax.data.difficulty import pass_rate
from cascade_jax.data.packing import pack
from cascade_jax.seeding import derive
from cascade_jax.types import Batch, Row
from cascade_jax.types import Sequence as Tokens

if TYPE_CHECKING:
    import grain

Position = tuple[str, int]  # domain, index of the row in it


class Mixture:
    """The endless stream of positions, with random access. ValueError where names differ or a domain has no rows.

    Among the first n positions, a domain has its share of n up to less than one for each domain before it. `orders`
    (domain -> order, order[k] = index of its k-th row) replaces the shuffled epochs.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        weights: Mapping[str, float],
        *,
        seed: int,
        orders: "Mapping[str, Shuffled | Order] | None" = None,
    ):
        if set(sizes) != set(weights):
            raise ValueError(
                f"the domains {sorted(sizes)} and the weights of {sorted(weights)} must have the same names."
            )
        empty = sorted(name for name, size in sizes.items() if size == 0)
        if empty or not sizes:
            raise ValueError(f"the domains {empty} have no rows; a mixture needs at least one row in each domain.")
        # As written: 0.3 is 3/10, so that the ratios are exact and not off by a rounding error that grows.
        parts = {name: Fraction(str(weights[name])) for name in sorted(sizes)}
        scale = math.lcm(*(part.denominator for part in parts.values()))
        self._shares = {name: int(part * scale) for name, part in parts.items()}
        self._total = sum(self._shares.values())
        self._orders = orders or {name: Shuffled(size, name, seed=seed) for name, size in sizes.items()}

    def __len__(self) -> int:
        return sys.maxsize // 2  # endless; Grain rounds the number of batches up, above what a length may be

    def __getitem__(self, n: int) -> Position:
        # Of what the domains before it leave, a domain takes its share; position n is its where its count grows with n.
        before, after, total = n, n + 1, self._total
        for name, share in self._shares.items():
            count = before * share // total
            if after * share // total > count:
                return name, self._orders[name][count]
            before, after, total = before - count, after - count, total - share
        raise IndexError(f"position {n} is negative")


class Shuffled:
    """The endless order of a domain's rows: all of them in each epoch, shuffled anew."""

    def __init__(self, size: int, name: str, *, seed: int):
        self._size, self._name, self._seed = size, name, seed
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __getitem__(self, n: int) -> int:
        epoch, place = divmod(n, self._size)
        if self._epoch != epoch:
            generator = np.random.default_rng(derive(self._seed, self._name, epoch))
            self._epoch, self._order = epoch, generator.permutation(self._size)
        return int(self._order[place])


def curriculum(
    domains: Mapping[str, Sequence[Row]],
    weights: Mapping[str, float],
    config: CurriculumConfig,
    *,
    seed: int,
    draws: int,
) -> dict[str, Order]:
    """domain -> order, for a stage that draws `draws` prompts in all. ValueError where a domain was not profiled."""
    orders = {}
    for name, rows in domains.items():
        try:
            orders[name] = Order(
                [pass_rate(row) for row in rows],
                config,
                draws=round(draws * weights[name] / sum(weights.values())),
                seed=derive(seed, name),
            )
        except ValueError as error:
            raise ValueError(f"domain {name!r} has no curriculum: {error}") from None
    return orders


def prompts(
    domains: Mapping[str, Sequence[Row]],
    weights: Mapping[str, float],
    *,
    seed: int,
    batch: int,
    orders: Mapping[str, Order] | None = None,
) -> "grain.DatasetIterator[list[tuple[str, Row]]]":
    """An endless iterator over lists of `batch` (domain, row). `set_state` takes what `get_state` gave (JSON)."""
    mixture = Mixture({name: len(rows) for name, rows in domains.items()}, weights, seed=seed, orders=orders)
    rows = _dataset(mixture).map(lambda position: (position[0], domains[position[0]][position[1]]))
    return _iterator(rows.batch(batch, batch_fn=list))


def sft_batches(
    domains: Mapping[str, Sequence[Tokens]], weights: Mapping[str, float], *, seed: int, rows: int, length: int
) -> "PackedBatches":
    """An endless iterator over batches of `rows` packed rows of `length` tokens; looks sequences up as needed."""
    return PackedBatches(domains, weights, seed=seed, rows=rows, length=length)


@dataclass(frozen=True)
class Plan:
    """Which sequences lie in which packed row, first-fit in their order."""

    sequences: tuple[Tokens, ...]
    row_of: tuple[int, ...]
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return sum(len(sequence.ids) for sequence in self.sequences)

    def batch(self, rows: slice = slice(None)) -> Batch:
        """These rows of the batch and no others, as they lie in the whole one."""
        wanted = range(self.rows)[rows]
        inside = [s for s, row in zip(self.sequences, self.row_of, strict=True) if row in wanted]
        return pack(inside, self.length, rows=len(wanted))


class PackedBatches:
    """First-fit over the stream. Sequences without room wait for the next batch, at most `rows`: each will fit."""

    def __init__(
        self,
        domains: Mapping[str, Sequence[Tokens]],
        weights: Mapping[str, float],
        *,
        seed: int,
        rows: int,
        length: int,
    ):
        self._domains, self._rows, self._length = domains, rows, length
        mixture = Mixture({name: len(d) for name, d in domains.items()}, weights, seed=seed)
        self._stream = _iterator(_dataset(mixture))
        self._waiting: list[Position] = []

    def __iter__(self) -> "PackedBatches":
        return self

    def __next__(self) -> Batch:
        return self.plan().batch()

    def plan(self) -> Plan:
        """The next batch, before its arrays are made: of several processes, each makes its own rows."""
        room, packed, waiting = [self._length] * self._rows, [], []
        queue = iter(self._waiting)
        while len(waiting) < self._rows and any(room):
            position = next(queue, None) or next(self._stream)
            sequence = self._sequence(position)
            row = next((r for r in range(self._rows) if room[r] >= len(sequence.ids)), None)
            if row is None:
                waiting.append(position)
            else:
                room[row] -= len(sequence.ids)
                packed.append((sequence, row))
        self._waiting = waiting
        sequences, row_of = zip(*packed, strict=True)
        return Plan(sequences, row_of, self._rows, self._length)

    def _sequence(self, position: Position) -> Tokens:
        domain, index = position
        sequence = self._domains[domain][index]
        if not 0 < len(sequence.ids) <= self._length:
            raise ValueError(
                f"row {index} of domain {domain!r} has {len(sequence.ids)} tokens, but a packed row holds "
                f"1 to {self._length}; drop it or raise the stage's length."
            )
        return sequence

    def get_state(self) -> dict[str, Any]:
        """The position in the stream and who waits, as JSON values."""
        return {"stream": self._stream.get_state(), "waiting": [list(position) for position in self._waiting]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._stream.set_state(dict(state["stream"]))
        self._waiting = [(domain, index) for domain, index in state["waiting"]]


def _dataset(mixture: Mixture) -> "grain.MapDataset[Position]":
    import grain

    return grain.MapDataset.source(mixture)


def _iterator(dataset: "grain.MapDataset") -> "grain.DatasetIterator":
    import grain

    # Rows are at hand; reading ahead in threads would only contend for the interpreter.
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
