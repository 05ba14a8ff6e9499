"""Packing against a slow, obvious version, on random lengths; and what it refuses."""

import numpy as np
import pytest

from cascade_jax.data.packing import pack, place
from cascade_jax.types import Sequence


def make(sizes: list[int], seed: int = 0) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    return [
        Sequence(
            ids=rng.integers(1, 1000, n).astype(np.int32),
            trained=rng.random(n) < 0.5,
            fields={"advantages": rng.normal(size=n), "sampler_logprobs": rng.normal(size=n).astype(np.float32)},
        )
        for n in sizes
    ]


def slowly(samples: list[Sequence], length: int):
    """Rows as lists of tokens (id, segment, target, mask, advantage), each row filled up at the end."""
    rows: list[list[tuple]] = []
    segments: list[int] = []
    for sample in samples:
        fitting = [r for r, row in enumerate(rows) if len(row) + len(sample.ids) <= length]
        if not fitting:
            rows.append([])
            segments.append(0)
        r = fitting[0] if fitting else len(rows) - 1
        segments[r] += 1
        for t, token in enumerate(sample.ids):
            last = t + 1 == len(sample.ids)
            target = (
                (0, False, 0.0)
                if last
                else (sample.ids[t + 1], sample.trained[t + 1], sample.fields["advantages"][t + 1])
            )
            rows[r].append((token, segments[r], *target))
    return [row + [(0, 0, 0, False, 0.0)] * (length - len(row)) for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_slow_version(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 40))
    samples = make([int(n) for n in rng.integers(1, length + 1, rng.integers(1, 60))], seed)
    batch, expected = pack(samples, length), slowly(samples, length)
    assert batch.ids_BT.shape == (len(expected), length)
    columns = [np.array([[token[k] for token in row] for row in expected]) for k in range(5)]
    np.testing.assert_array_equal(batch.ids_BT, columns[0])
    np.testing.assert_array_equal(batch.segments_BT, columns[1])
    np.testing.assert_array_equal(batch.targets_BT, columns[2])
    np.testing.assert_array_equal(batch.mask_BT, columns[3].astype(bool))
    np.testing.assert_array_equal(batch.fields["advantages"], columns[4].astype(np.float32))
    assert [a.dtype for a in (batch.ids_BT, batch.segments_BT, batch.targets_BT)] == [np.int32] * 3
    assert batch.mask_BT.dtype == bool
    assert {a.dtype for a in batch.fields.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("seed", range(5))
def test_placements_say_where_each_sequence_lies(seed):
    rng = np.random.default_rng(seed)
    samples = make([int(n) for n in rng.integers(1, 33, 50)], seed)
    batch = pack(samples, 32)
    placements = place([len(sample.ids) for sample in samples], 32)
    for sample, (row, start) in zip(samples, placements, strict=True):
        stop = start + len(sample.ids)
        np.testing.assert_array_equal(batch.ids_BT[row, start:stop], sample.ids)
        assert len(set(batch.segments_BT[row, start:stop])) == 1
        np.testing.assert_array_equal(
            batch.fields["sampler_logprobs"][row, start : stop - 1], sample.fields["sampler_logprobs"][1:]
        )
    assert (batch.segments_BT > 0).sum() == sum(len(sample.ids) for sample in samples)


def test_first_fit_keeps_the_given_order():
    assert place([6, 5, 4, 3, 2], 10) == [(0, 0), (1, 0), (0, 6), (1, 5), (1, 8)]


def test_rows_are_filled_up_to_the_number_that_was_asked_for():
    samples = make([3, 4])
    plain, filled = pack(samples, 8), pack(samples, 8, rows=3)
    assert filled.ids_BT.shape == (3, 8)
    np.testing.assert_array_equal(filled.ids_BT[:1], plain.ids_BT)
    assert not filled.segments_BT[1:].any()
    assert not filled.mask_BT[1:].any()
    assert not filled.fields["advantages"][1:].any()
    assert pack([], 8, rows=2).ids_BT.shape == (2, 8)
    assert pack([], 8).ids_BT.shape == (0, 8)


def test_refusals():
    with pytest.raises(ValueError, match=r"^sequence 1 has 9 tokens, but a packed row holds 1 to 8; .*length\.$"):
        pack(make([3, 9]), 8)
    with pytest.raises(ValueError, match="sequence 0 has 0 tokens"):
        pack(make([0]), 8)
    with pytest.raises(ValueError, match=r"^3 sequences need more than 2 rows of 8 tokens; raise rows or length\.$"):
        pack(make([5, 5, 5]), 8, rows=2)
    with pytest.raises(ValueError, match="need more than 0 rows"):
        pack(make([5]), 8, rows=0)
    odd = Sequence(np.ones(2, np.int32), np.ones(2, bool))
    with pytest.raises(ValueError, match=r"^sequence 1 has the fields \[\], the first one \['advantages'"):
        pack([*make([2]), odd], 8)
