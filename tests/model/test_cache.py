"""prefill and decode give what the full forward gives, however a row is cut into pieces."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from cascade_jax.model import apply, cache

FULL = jax.jit(
    lambda config, params, ids: apply.logits(config, params, apply.hidden(config, params, ids)[0]), static_argnums=0
)
PREFILL = jax.jit(apply.prefill, static_argnums=0)
DECODE = jax.jit(apply.decode, static_argnums=0)
T, PIECE = 28, 10


def test_prefill_in_pieces_and_decode_equal_the_full_forward(config, weights):
    rng = np.random.default_rng(0)
    params = weights(config, 0)
    ids = rng.integers(0, config.vocab_size, (4, T)).astype(np.int32)
    full = np.asarray(FULL(config, params, ids))
    filled = apply.empty_cache(config, 4, T)
    seen = np.zeros(4, np.int32)
    for lengths in ([10, 3, 1, 0], [2, 10, 0, 1], [10, 1, 5, 9]):  # of right-padded pieces, none at all for some rows
        lengths = np.asarray(lengths, np.int32)
        piece = rng.integers(0, config.vocab_size, (4, PIECE)).astype(np.int32)  # pads hold anything
        for row in range(4):
            piece[row, : lengths[row]] = ids[row, seen[row] : seen[row] + lengths[row]]
        logits, filled = PREFILL(config, params, piece, lengths, filled)
        seen += lengths
        assert np.isfinite(logits).all()
        live = lengths > 0
        np.testing.assert_allclose(np.asarray(logits)[live], full[np.arange(4), seen - 1][live], atol=1e-5)
        np.testing.assert_array_equal(filled.lengths_B, seen)
    for _ in range(5):
        logits, filled = DECODE(config, params, ids[np.arange(4), seen], filled)
        np.testing.assert_allclose(logits, full[np.arange(4), seen], atol=1e-5)
        seen += 1


def test_pads_write_nothing(hybrid, weights):
    params = weights(hybrid, 1)
    rng = np.random.default_rng(1)
    ids = rng.integers(0, hybrid.vocab_size, (4, PIECE)).astype(np.int32)
    lengths, none = np.asarray([7, 10, 0, 1], np.int32), np.zeros(4, np.int32)
    _, filled = PREFILL(hybrid, params, ids, lengths, apply.empty_cache(hybrid, 4, T))
    other = np.where(np.arange(PIECE) < lengths[:, None], ids, 0)
    _, again = PREFILL(hybrid, params, other, lengths, apply.empty_cache(hybrid, 4, T))
    jax.tree.map(np.testing.assert_array_equal, filled, again)
    _, same = PREFILL(hybrid, params, ids, none, filled)
    jax.tree.map(np.testing.assert_array_equal, filled, same)
    _, same = PREFILL(hybrid, params, ids[:, :1], none, filled)  # the one-token form
    jax.tree.map(np.testing.assert_array_equal, filled, same)


def test_a_group_shares_the_prefill_of_its_prompt(hybrid, weights):
    params = weights(hybrid, 2)
    rng = np.random.default_rng(2)
    prompts = rng.integers(0, hybrid.vocab_size, (2, PIECE)).astype(np.int32)
    lengths = np.asarray([6, 4], np.int32)
    _, shared = PREFILL(hybrid, params, prompts, lengths, apply.empty_cache(hybrid, 2, T))
    _, alone = PREFILL(hybrid, params, prompts.repeat(2, axis=0), lengths.repeat(2), apply.empty_cache(hybrid, 4, T))
    token = rng.integers(0, hybrid.vocab_size, 4).astype(np.int32)
    a, _ = DECODE(hybrid, params, token, cache.repeat(shared, 2))
    b, _ = DECODE(hybrid, params, token, alone)
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_cache_dtypes(hybrid):
    small = apply.empty_cache(hybrid, 2, 8, dtype=jnp.bfloat16)
    for letter, entry in zip(hybrid.pattern, small.layers, strict=True):
        if letter == "M":
            assert entry.conv.dtype == jnp.bfloat16
            assert entry.ssm.dtype == jnp.float32  # spec: a bfloat16 state loses the long memory
        elif letter == "*":
            assert entry.keys.dtype == entry.values.dtype == jnp.bfloat16
        else:
            assert entry is None


def test_time_step_limit_clamps_prefill_and_decode_alike(hybrid, weights):
    free = replace(hybrid, pattern="M")
    config = replace(free, time_step_limit=(0.2, 0.25))
    params = weights(config, 3)
    ids = np.random.default_rng(3).integers(0, config.vocab_size, (4, T)).astype(np.int32)
    full = np.asarray(FULL(config, params, ids))
    assert np.abs(full - FULL(free, params, ids)).max() > 1e-2
    filled = apply.empty_cache(config, 4, T)
    for t in range(9):
        logits, filled = DECODE(config, params, ids[:, t], filled)
        np.testing.assert_allclose(logits, full[:, t], atol=1e-5)
