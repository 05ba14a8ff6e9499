"""The chunked SSD against the recurrence, one token after the other, in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ssd import causal_conv, ssd

H, P, G, N = 4, 3, 2, 5
SSD = jax.jit(ssd, static_argnames="chunk")


def recurrence(x, dt, A, B, C, segments, state):
    """(B, T, ...) float64 -> y and the last state; the state is emptied where a new segment starts."""
    state, y = state.copy(), np.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            if t and segments[b, t] != segments[b, t - 1]:
                state[b] = 0
            for h in range(H):
                g = h // (H // G)
                state[b, h] = np.exp(dt[b, t, h] * A[h]) * state[b, h] + dt[b, t, h] * np.outer(x[b, t, h], B[b, t, g])
                y[b, t, h] = state[b, h] @ C[b, t, g]
    return y, state


@pytest.mark.parametrize("dt_scale", [0.1, 30.0])  # the second: prefix sums of dt A reach -1e4
@pytest.mark.parametrize(
    "cuts",
    [
        (1, ()),
        (8, (3,)),
        (37, ()),
        (37, (1, 8, 9, 30)),
        (64, (16, 17, 48, 63)),
    ],
)
def test_chunks_equal_the_recurrence(cuts, dt_scale):
    T, starts = cuts
    rng = np.random.default_rng(T)
    x, B, C = rng.standard_normal((2, T, H, P)), rng.standard_normal((2, T, G, N)), rng.standard_normal((2, T, G, N))
    dt, A = dt_scale * rng.uniform(size=(2, T, H)), -rng.uniform(0.1, 16, H)
    segments = np.zeros((2, T), np.int32) + np.isin(np.arange(T), starts).cumsum() + 1
    dead = rng.uniform(size=(2, T)) < 0.2
    x[dead], dt[dead] = 0, 0
    state = rng.standard_normal((2, H, P, N))
    y, last = recurrence(x, dt, A, B, C, segments, state)
    inputs = [jnp.asarray(a, jnp.float32) for a in (x, dt, A, B, C)]
    got_y, got_last, _ = SSD(*inputs, segments, chunk=8, initial_state=jnp.asarray(state, jnp.float32))
    scale = np.abs(y).max()
    np.testing.assert_allclose(got_y, y, atol=1e-5 * scale)
    np.testing.assert_allclose(got_last, last, atol=1e-5 * np.abs(last).max())


def test_convolution_reaches_the_history_and_no_other_segment():
    rng = np.random.default_rng(1)
    x, weight, bias = rng.standard_normal((1, 7, 2)), rng.standard_normal((4, 2)), rng.standard_normal(2)
    history = rng.standard_normal((1, 3, 2))
    row = np.concatenate([history, x], axis=1)[0]
    raw = np.stack([bias + sum(weight[j] * row[t + j] for j in range(4)) for t in range(7)])
    history, x, weight, bias = (jnp.asarray(a, jnp.float32) for a in (history, x, weight, bias))
    one = jnp.ones((1, 7), jnp.int32)
    got = causal_conv(x, weight, bias, one, history_BWC=history)
    np.testing.assert_allclose(got[0], raw / (1 + np.exp(-raw)), atol=1e-5)
    segments = np.asarray([[1, 1, 1, 2, 2, 2, 2]])
    packed = causal_conv(x, weight, bias, segments)
    alone = causal_conv(x[:, 3:], weight, bias, one[:, 3:])
    np.testing.assert_array_equal(packed[:, 3:], alone)
