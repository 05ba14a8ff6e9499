"""What k samples on each of many rows say about a checkpoint, and how sure that is.

R rows, K samples of each. scores_RK holds rewards in [0, 1], NaN where no verdict was had; such samples take no part,
and rows without any other leave the mean. Intervals are of 95 %. Samples of one row are not independent, so errors are
those of a mean over rows (Miller 2024, "Adding Error Bars to Evals"), never over rows x samples.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cascade_jax.evaluation import wilson

Scores = Float[np.ndarray, "R K"]
RESAMPLES = 4_000
_CHUNK = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over `rows` rows. `value` is None and the interval [0, 1] where there is no row to tell it."""

    value: float | None
    low: float
    high: float
    rows: int
    row_error: float | None = None  # standard error across rows
    run_error: float | None = None  # standard error across the K runs, each the mean of one sample per row


def row_means(scores_RK: Scores) -> Float[np.ndarray, " R"]:
    """The mean of each row's samples with a verdict, NaN where there is none."""
    known_RK = ~np.isnan(scores_RK)
    count_R = known_RK.sum(1)
    total_R = np.where(known_RK, scores_RK, 0.0).sum(1)
    return np.where(count_R > 0, total_R / np.maximum(count_R, 1), np.nan)


def average_at_k(scores_RK: Scores) -> Estimate:
    """pass@1[avg-of-k]: the mean over a row's samples, then over rows.

    The interval is Wilson's where each row is one success or failure, else a bootstrap over rows.
    """
    estimate = of_rows(row_means(scores_RK), proportion=scores_RK.shape[1] == 1 and is_binary(scores_RK))
    runs_K = [column[~np.isnan(column)].mean() for column in scores_RK.T if not np.isnan(column).all()]
    return dataclasses.replace(estimate, run_error=standard_error(np.array(runs_K)))


def pass_at_k(scores_RK: Scores, k: int) -> Estimate:
    """The chance that the best of k samples passes (its score, where scores are graded), without bias.

    Of n >= k samples of a row, the i-th smallest is the best of C(i-1, k-1) out of C(n, k) subsets; for binary scores
    the sum is 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, section 2.1). Rows with fewer than k verdicts take no part.
    ValueError: k below 1 or above K.
    """
    if not 1 <= k <= scores_RK.shape[1]:
        raise ValueError(f"pass@{k} needs 1 to {scores_RK.shape[1]} samples of a row, as many as were drawn.")
    return of_rows(np.array([_best_of(np.sort(row[~np.isnan(row)]), k) for row in scores_RK]))


def _best_of(ascending: Float[np.ndarray, " n"], k: int) -> float:
    n = len(ascending)
    if n < k:
        return math.nan
    subsets = math.comb(n, k)
    return float(sum(score * (math.comb(i, k - 1) / subsets) for i, score in enumerate(ascending)))


def majority_at_k(
    scores_RK: Scores, answers_RK: Sequence[Sequence[str | None]], *, same: Callable[[str, str], bool] | None = None
) -> Estimate:
    """The score of the answer that most samples of a row give; `same` says which answers are one (default: equal text).

    Samples without an answer or without a verdict do not vote; answers with equally many votes share; a row in which
    nobody votes scores 0 if any sample has a verdict.
    """
    same = same or (lambda a, b: a == b)
    values = []
    for scores, answers in zip(scores_RK, answers_RK, strict=True):
        known = [(answer, score) for answer, score in zip(answers, scores, strict=True) if not np.isnan(score)]
        values.append(_elected([(a, s) for a, s in known if a is not None], same) if known else math.nan)
    return of_rows(np.array(values))


def _elected(votes: Sequence[tuple[str, float]], same: Callable[[str, str], bool]) -> float:
    """The score of the answer with the most votes; its votes may be scored differently, then their mean."""
    buckets: dict[str, list[float]] = {}
    for answer, score in votes:
        named = answer if answer in buckets else next((first for first in buckets if same(first, answer)), answer)
        buckets.setdefault(named, []).append(score)
    most = max(map(len, buckets.values()), default=0)
    winners = [float(np.mean(scores)) for scores in buckets.values() if len(scores) == most]
    return float(np.mean(winners)) if winners else 0.0


@dataclass(frozen=True)
class Comparison:
    """B against A on the same rows: `difference` is mean(B - A) with its interval, `p` of the sign-flip permutation
    test, `sign_p` of the sign test on the rows that `better` and `worse` count."""

    difference: Estimate
    better: int
    worse: int
    equal: int
    p: float
    sign_p: float


def compare(first_RK: Scores, second_RK: Scores) -> Comparison:
    """The second against the first, row by row; rows where either has no verdict take no part.

    ValueError: another number of rows.
    """
    if len(first_RK) != len(second_RK):
        raise ValueError(f"{len(first_RK)} and {len(second_RK)} rows do not pair; compare runs over the same rows.")
    gain_R = row_means(second_RK) - row_means(first_RK)
    gain_R = gain_R[~np.isnan(gain_R)]
    better, worse = int((gain_R > 0).sum()), int((gain_R < 0).sum())
    return Comparison(
        difference=of_rows(gain_R, limits=(-1.0, 1.0)),
        better=better,
        worse=worse,
        equal=len(gain_R) - better - worse,
        p=permutation_p(gain_R),
        sign_p=sign_p(better, worse),
    )


def sign_p(better: int, worse: int) -> float:
    """Two-sided: the chance of a split at least this uneven if a better row were as likely as a worse one."""
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(min(better, worse) + 1)) / 2**n
    return min(1.0, 2 * tail)


def permutation_p(gain_R: Float[np.ndarray, " R"]) -> float:
    """Two-sided, for the mean, with the sign of each row's gain flipped at random: exact up to 16 rows that differ."""
    gain_R = gain_R[gain_R != 0]
    n = len(gain_R)
    least = abs(gain_R.sum()) * (1 - 1e-9)
    if n <= 16:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ gain_R) >= least).mean())
    rng, extreme, draws = np.random.default_rng(0), 0, 20_000
    for count in _parts(draws, n):
        extreme += int((np.abs(rng.choice((-1.0, 1.0), (count, n)) @ gain_R) >= least).sum())
    return (extreme + 1) / (draws + 1)


def of_rows(
    values_R: Float[np.ndarray, " R"], *, proportion: bool = False, limits: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """The mean over rows that are not NaN; its interval is Wilson's for a proportion, else a percentile bootstrap.

    Rows that are all equal give a bootstrap no width. The share of rows that may still differ is then bounded as Wilson
    bounds 0 of as many, and the interval is what that share could move the mean.
    """
    known_R = values_R[~np.isnan(values_R)]
    n = len(known_R)
    if n == 0:
        return Estimate(None, *limits, rows=0)
    mean = float(known_R.mean())
    if proportion:
        low, high = wilson(mean, n)
    elif np.ptp(known_R) == 0:
        unseen = wilson(0.0, n)[1]
        low, high = mean - unseen * (mean - limits[0]), mean + unseen * (limits[1] - mean)
    else:
        low, high = np.quantile(_bootstrap(known_R), (0.025, 0.975))
    return Estimate(mean, float(low), float(high), rows=n, row_error=standard_error(known_R))


def _bootstrap(values_R: Float[np.ndarray, " R"]) -> Float[np.ndarray, " n"]:
    """Means of RESAMPLES draws of as many rows; the same for the same values."""
    rng, n = np.random.default_rng(0), len(values_R)
    parts = [values_R[rng.integers(0, n, (count, n))].mean(1) for count in _parts(RESAMPLES, n)]
    return np.concatenate(parts)


def _parts(draws: int, width: int) -> list[int]:
    """`draws` in parts that keep memory small."""
    most = max(1, _CHUNK // width)
    return [min(most, draws - start) for start in range(0, draws, most)]


def standard_error(values: Float[np.ndarray, " n"]) -> float | None:
    """Of the mean of independent values; None for fewer than two."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def is_binary(scores_RK: Scores) -> bool:
    known = scores_RK[~np.isnan(scores_RK)]
    return bool(np.isin(known, (0.0, 1.0)).all())
