"""Every figure against a closed form or against the slow, obvious way to have it."""

import itertools
import math

import numpy as np
import pytest

from evals import statistics

RNG = np.random.default_rng(7)
NAN = np.nan


def binary(rows, samples, share=0.4):
    return (RNG.random((rows, samples)) < share).astype(float)


def test_average_is_over_samples_then_over_rows():
    scores = np.array([[1, 0, NAN, NAN], [1, 1, 1, 1], [NAN] * 4, [0, 0, 0, 1]])
    found = statistics.average_at_k(scores)
    assert found.value == pytest.approx((0.5 + 1 + 0.25) / 3) and found.rows == 3
    assert found.row_error == pytest.approx(np.std([0.5, 1, 0.25], ddof=1) / math.sqrt(3))
    runs = [2 / 3, 1 / 3, 1 / 2, 1.0]  # each column's mean, over the rows with a verdict there
    assert found.run_error == pytest.approx(np.std(runs, ddof=1) / 2)


@pytest.mark.parametrize(("passed", "rows"), [(0, 16), (3, 16), (16, 16), (100, 294)])
def test_one_binary_sample_has_the_wilson_interval(passed, rows):
    scores = np.array([[1.0]] * passed + [[0.0]] * (rows - passed))
    found, z = statistics.average_at_k(scores), 1.96
    assert found.value == pytest.approx(passed / rows)
    # The bounds are where the score test of the proportion p gives z.
    for bound in (found.low, found.high):
        if 0 < bound < 1:
            assert abs(found.value - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / rows), rel=1e-6)
    assert (found.low == 0) == (passed == 0) and (found.high == 1) == (passed == rows)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_mean_over_all_subsets(k):
    scores = binary(6, 5)
    graded = RNG.random((6, 5))
    for table in (scores, graded):
        slow = [np.mean([max(subset) for subset in itertools.combinations(row, k)]) for row in table]
        assert statistics.pass_at_k(table, k).value == pytest.approx(np.mean(slow))
    closed = [1 - math.comb(5 - int(row.sum()), k) / math.comb(5, k) for row in scores]
    assert statistics.pass_at_k(scores, k).value == pytest.approx(np.mean(closed))


def test_pass_at_k_leaves_out_rows_with_too_few_verdicts():
    scores = np.array([[1, 0, 0], [1, NAN, NAN], [0, 0, NAN]])
    found = statistics.pass_at_k(scores, 2)
    assert found.rows == 2 and found.value == pytest.approx((2 / 3 + 0) / 2)
    assert statistics.pass_at_k(scores, 1).value == statistics.average_at_k(scores).value
    for k in (0, 4):
        with pytest.raises(ValueError, match="needs 1 to 3 samples"):
            statistics.pass_at_k(scores, k)


def test_majority_votes_over_answers_that_are_there():
    scores = np.array(
        [
            [1, 1, 0, 0, 0],  # a wins
            [1, 0, 0, 0, 1],  # 7 and 8 share
            [0, 0, 0, 0, 1],  # three without an answer do not outvote
            [0, 0, 0, 0, 0],  # nobody answers
            [NAN, NAN, 1, 1, 0],  # what has no verdict does not vote
            [NAN] * 5,  # nothing is known
        ]
    )
    answers = [
        ["a", "a", "b", "c", None],
        ["7", "8", "8", None, "7"],
        [None, None, None, "3", "4"],
        [None] * 5,
        ["x", "x", "y", "y", "x"],
        ["1"] * 5,
    ]
    found = statistics.majority_at_k(scores, answers)
    assert found.rows == 5 and found.value == pytest.approx((1 + 0.5 + 0.5 + 0 + 1) / 5)


def test_majority_buckets_by_the_given_equality():
    scores, answers = np.array([[1.0, 1.0, 0.0, 0.0, 0.0]]), [["1/2", "0.5", "3", "3", "2/4"]]
    scores[0, 4] = 1.0
    assert statistics.majority_at_k(scores, answers).value == 0.0  # as texts, 3 has the most votes
    equal = lambda a, b: eval(a) == eval(b)  # noqa: E731
    assert statistics.majority_at_k(scores, answers, same=equal).value == 1.0


def test_the_bootstrap_draws_rows_not_samples():
    """64 equal samples of a row are worth one: the interval is that of 40 rows."""
    once = binary(40, 1)
    many = np.repeat(once, 64, axis=1)
    found = statistics.average_at_k(many)
    exact = 1.96 * math.sqrt(found.value * (1 - found.value) / 40)
    assert found.high - found.value == pytest.approx(exact, rel=0.15)
    assert found.value - found.low == pytest.approx(exact, rel=0.15)
    assert found == statistics.average_at_k(many)  # and the same each time


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for _ in range(200):
        chances = RNG.beta(1, 2, size=60)
        scores = (RNG.random((60, 8)) < chances[:, None]).astype(float)
        found = statistics.average_at_k(scores)
        covered += found.low <= 1 / 3 <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_equal_rows_still_have_an_interval():
    none = statistics.average_at_k(np.zeros((16, 4)))
    assert none.value == none.low == 0 and none.high == pytest.approx(1.96**2 / (16 + 1.96**2))
    every = statistics.average_at_k(np.ones((16, 4)))
    assert every.value == every.high == 1 and every.low == pytest.approx(1 - none.high)
    assert statistics.average_at_k(np.zeros((400, 4))).high < 0.01
    unknown = statistics.average_at_k(np.full((3, 2), NAN))
    assert (unknown.value, unknown.low, unknown.high, unknown.rows) == (None, 0, 1, 0)


def test_the_permutation_test_is_the_exact_one():
    gain = np.array([0.5, -0.25, 0, 0.75, 0.25, -0.5, 1.0])
    live = gain[gain != 0]
    means = [
        abs(sum(s * g for s, g in zip(signs, live, strict=True))) for signs in itertools.product((1, -1), repeat=6)
    ]
    exact = np.mean([m >= abs(live.sum()) - 1e-12 for m in means])
    assert statistics.permutation_p(gain) == pytest.approx(exact)
    assert statistics.permutation_p(np.zeros(5)) == 1
    # Beyond 16 rows that differ it is drawn: twice the same rows, against the normal limit
    many = np.tile(gain, 60)
    z = abs(many.sum()) / math.sqrt((many**2).sum())
    assert statistics.permutation_p(many) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=5e-3)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 1), (10, 10), (3, 14)])
def test_the_sign_test_is_the_binomial_one(better, worse):
    n = better + worse
    chance = [math.comb(n, i) / 2**n for i in range(n + 1)]
    exact = sum(c for i, c in enumerate(chance) if abs(i - n / 2) >= abs(better - n / 2))
    assert statistics.sign_p(better, worse) == pytest.approx(exact)


def test_comparison_pairs_the_rows():
    hard = binary(80, 1, share=0.5)
    first = np.repeat(hard, 4, axis=1)
    second = first.copy()
    second[:12] = 1.0
    found = statistics.compare(first, second)
    assert found.difference.value == pytest.approx(second.mean() - first.mean())
    assert found.worse == 0 and found.better + found.equal == 80 and found.difference.low > 0
    # Unpaired, rows differ so much among themselves that the same difference would be lost.
    alone = statistics.average_at_k(second)
    assert found.difference.high - found.difference.low < (alone.high - alone.low) * 0.7
    first[3] = NAN
    assert statistics.compare(first, second).difference.rows == 79
    same = statistics.compare(second, second)
    assert same.difference.value == 0 and same.p == same.sign_p == 1 and -0.05 < same.difference.low < 0
    with pytest.raises(ValueError, match="do not pair"):
        statistics.compare(first[:3], second)
