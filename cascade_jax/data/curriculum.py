"""Easy rows first: an order in which the pass rates follow a Gaussian whose mean slides (Nemotron 3 Nano, 3.2.2)."""

from collections.abc import Sequence

import numpy as np

from cascade_jax.config import CurriculumConfig
from cascade_jax.seeding import derive

_GRID = 32  # pass rates closer than 1 / _GRID count as one


class Order:
    """The endless order of one domain's rows: `order[n]` is the index of the n-th one, a function of the arguments.

    A pass rate is drawn from the Gaussian over those that rows are left of, then a row of it, without repeating one
    before all were drawn. The mean goes from `start` to `end` over `draws` rows and stays there. Rows without a pass
    rate are never drawn; ValueError where no row has one.
    """

    def __init__(self, rates: Sequence[float | None], config: CurriculumConfig, *, draws: int, seed: int):
        known = [(index, rate) for index, rate in enumerate(rates) if rate is not None]
        if not known:
            raise ValueError("no row has a pass_rate; write them with `python -m launch.data profile`.")
        indices, values = np.array([i for i, _ in known]), np.round(np.array([r for _, r in known]) * _GRID) / _GRID
        self._levels = np.unique(values)
        self._members = [indices[values == level] for level in self._levels]
        self._config, self._draws = config, draws
        self._random = np.random.default_rng(derive(seed, "curriculum"))
        self._drawn: list[int] = []
        self._refill()

    def __getitem__(self, n: int) -> int:
        while len(self._drawn) <= n:
            self._drawn.append(self._draw())
        return self._drawn[n]

    def mean(self, n: int) -> float:
        """Of the Gaussian that the n-th row is drawn from."""
        share = min(1.0, n / max(1, self._draws - 1))
        return self._config.start + share * (self._config.end - self._config.start)

    def _draw(self) -> int:
        left = np.array([len(members) for members in self._left])
        if not left.any():
            self._refill()
            left = np.array([len(members) for members in self._left])
        log_weights = -0.5 * ((self._levels - self.mean(len(self._drawn))) / self._config.spread) ** 2
        log_weights = np.where(left > 0, log_weights, -np.inf)
        weights = np.cumsum(np.exp(log_weights - log_weights.max()))
        level = int(np.searchsorted(weights, self._random.random() * weights[-1], side="right"))
        return int(self._left[min(level, int(np.flatnonzero(left)[-1]))].pop())

    def _refill(self) -> None:
        self._left = [list(self._random.permutation(members)) for members in self._members]
