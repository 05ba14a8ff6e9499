"""How hard a row is: the share of a checkpoint's answers that passed, which `launch.data profile` writes into it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cascade_jax.seeding import derive
from cascade_jax.types import Row

COLUMNS = ("pass_rate", "pass_rate_total", "pass_rate_passed")


def pass_rate(row: Row) -> float | None:
    """In [0, 1], or None where the row was not profiled. ValueError where its columns hold something else."""
    rate, total, passed = (row.extra.get(name) for name in COLUMNS)
    if rate is None and total and passed is not None:
        rate = passed / total
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1):
        raise ValueError(f"row {row.id} has pass_rate={rate!r}; it must be a number from 0 to 1.")
    return rate


def measured(passed: int, total: int) -> dict[str, Any]:
    """The columns of a row of whose `total` answers with a verdict `passed` were right; no rate where none had one."""
    rate: Mapping[str, Any] = {"pass_rate": passed / total} if total else {}
    return {**rate, "pass_rate_total": total, "pass_rate_passed": passed}


def keeps(row: Row, *, drop_solved: bool, keep_unsolved: float, seed: int) -> bool:
    """False for a row that was always solved, if `drop_solved`, and for all but a share of those that never were.

    Which of these stay depends on the seed and the row's id alone (recipe 11 and 13). ValueError for a row without a
    pass_rate, but one that was profiled without a single verdict stays.
    """
    rate = pass_rate(row)
    if rate is None and "pass_rate_total" not in row.extra:
        raise ValueError(f"row {row.id} has no pass_rate; write it with `python -m launch.data profile`.")
    if rate == 1:
        return not drop_solved
    if rate == 0:
        return bool(np.random.default_rng(derive(seed, "unsolved", row.id)).random() < keep_unsolved)
    return True
