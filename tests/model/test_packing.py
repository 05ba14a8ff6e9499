"""Packed rows are as good as separate rows, and padding changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.model import apply, attention
from cascade_jax.model.segments import segment_bounds

T = 40
RUN = jax.jit(
    lambda config, params, ids, segments: apply.logits(config, params, apply.hidden(config, params, ids, segments)[0]),
    static_argnums=0,
)


def random_segments(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Segments of random lengths with pads between them, before and after; the last row is all padding."""
    segments = np.zeros((rows, T), np.int32)
    for row in segments[:-1]:
        place, number = int(rng.integers(0, 3)), 0
        while place < T:
            length = int(rng.integers(1, 17))
            number += 1
            row[place : place + length] = number
            place += length + int(rng.integers(0, 2) * rng.integers(0, 5))
    return segments


@pytest.mark.parametrize("seed", range(3))
def test_packed_rows_equal_separate_rows(config, weights, seed):
    rng = np.random.default_rng(seed)
    params = weights(config, seed)
    segments = random_segments(rng, 5)
    ids = rng.integers(0, config.vocab_size, segments.shape).astype(np.int32)
    packed = np.asarray(RUN(config, params, ids, segments))
    pieces = [(row, segments[row] == n) for row in range(5) for n in range(1, segments[row].max() + 1)]
    alone_ids, alone_segments = np.zeros((32, T), np.int32), np.zeros((32, T), np.int32)
    assert 5 < len(pieces) <= 32
    for i, (row, where) in enumerate(pieces):
        alone_ids[i, : where.sum()], alone_segments[i, : where.sum()] = ids[row, where], 1
    alone = np.asarray(RUN(config, params, alone_ids, alone_segments))
    for i, (row, where) in enumerate(pieces):
        np.testing.assert_allclose(packed[row, where], alone[i, : where.sum()], atol=1e-5)
    assert np.isfinite(packed).all()


def test_a_changed_token_leaves_other_segments_as_they_were(config, weights):
    rng = np.random.default_rng(7)
    params = weights(config, 7)
    segments = np.asarray([[1] * 11 + [2] * 13 + [0] * 3 + [3] * 13] * 2, np.int32)
    ids = rng.integers(1, config.vocab_size, segments.shape).astype(np.int32)
    before = np.asarray(RUN(config, params, ids, segments))
    changed = ids.copy()
    changed[0, 12:16] = 0  # in the second segment of the first row
    changed[:, 24:27] = 0  # and in the padding
    after = np.asarray(RUN(config, params, changed, segments))
    others = (segments > 0) & ~((segments == 2) & (np.arange(2) == 0)[:, None])
    assert np.abs(after - before)[0, 12:24].max() > 1e-3
    if "E" in config.pattern:  # other rows stand in other tiles
        np.testing.assert_allclose(after[others], before[others], atol=1e-6)
    else:
        np.testing.assert_array_equal(after[others], before[others])


def test_no_segments_means_one_sequence_a_row_and_right_padding_changes_nothing(config, weights):
    rng = np.random.default_rng(1)
    params = weights(config, 1)
    ids = rng.integers(0, config.vocab_size, (3, T)).astype(np.int32)
    whole = RUN(config, params, ids, None)
    lengths = np.asarray([T, 17, 1])
    segments = (np.arange(T) < lengths[:, None]).astype(np.int32)
    padded = RUN(config, params, ids, segments)
    live = segments > 0
    np.testing.assert_allclose(np.asarray(padded)[live], np.asarray(whole)[live], atol=1e-5)


def test_gradients_are_finite_with_pads_anywhere(hybrid, weights):
    rng = np.random.default_rng(2)
    segments = random_segments(rng, 4)
    ids = rng.integers(0, hybrid.vocab_size, segments.shape).astype(np.int32)

    @jax.jit
    def gradient(params, segments):
        def loss(params):
            hidden, aux = apply.hidden(hybrid, params, ids, segments)
            logits = apply.logits(hybrid, params, hidden)
            return jnp.where(segments[..., None] > 0, logits**2, 0).sum() + aux.balance_loss.mean

        return jax.grad(loss)(params)

    some = gradient(weights(hybrid, 2), segments)
    none = gradient(weights(hybrid, 2), np.zeros_like(segments))
    for path, leaf in jax.tree_util.tree_leaves_with_path(some):
        assert jnp.isfinite(leaf).all(), path
        reached = jnp.abs(leaf).max() > 0
        assert reached != (path[-1].key == "router_bias"), path  # the correction bias gets no gradient
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(none))


def test_long_rows_go_in_blocks_of_queries(weights, monkeypatch):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 21, 4, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 2, 2, 8, 21)).astype(np.float32)
    segments = np.asarray([[1] * 9 + [2] * 12, [0] * 3 + [1] * 18], np.int32)
    given = {"places_BT": np.tile(np.arange(21), (2, 1)), "segments_BT": segments, "key_segments_BC": segments}

    def value_and_gradients():
        def loss(q, keys, values):
            out = attention.attend(q, keys, values.swapaxes(2, 3), **given)
            return jnp.where(segments[..., None, None] > 0, out, 0).var(), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(q, keys, values)

    (_, whole), whole_gradients = value_and_gradients()
    monkeypatch.setattr(attention, "QUERY_BLOCK", 8)
    (_, blocks), block_gradients = value_and_gradients()
    np.testing.assert_allclose(blocks[segments > 0], whole[segments > 0], atol=1e-6)
    for a, b in zip(block_gradients, whole_gradients, strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_segment_bounds():
    starts, ends = segment_bounds(jnp.asarray([[0, 1, 1, 2, 0, 0]]))
    assert starts.tolist() == [[0, 1, 1, 3, 4, 4]]
    assert ends.tolist() == [[1, 3, 3, 4, 6, 6]]
