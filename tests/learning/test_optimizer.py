"""Schedules, weight decay and the clip, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cascade_jax.config import OptimizerConfig
from cascade_jax.optimizer import decayed, learning_rate, make_optimizer


def test_constant_after_a_linear_warmup():
    rate = learning_rate(OptimizerConfig(learning_rate=2e-6, warmup_steps=30, warmup_from=2e-7), 52)
    got = [float(rate(step)) for step in (0, 15, 30, 31, 51, 500)]
    assert got == pytest.approx([2e-7, 1.1e-6, 2e-6, 2e-6, 2e-6, 2e-6], rel=1e-5)


def test_cosine_ends_at_the_minimum():
    config = OptimizerConfig(learning_rate=5e-5, schedule="cosine", min_learning_rate=5e-6, warmup_steps=200)
    rate = learning_rate(config, 1000)
    got = [float(rate(step)) for step in (0, 100, 200, 400, 600, 1000, 2000)]
    quarter = 5e-6 + 4.5e-5 * (1 + np.cos(np.pi / 4)) / 2
    assert got == pytest.approx([0, 2.5e-5, 5e-5, quarter, 2.75e-5, 5e-6, 5e-6], rel=1e-5)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_no_warmup_and_warmup_longer_than_the_run(schedule):
    config = OptimizerConfig(learning_rate=1e-3, schedule=schedule)
    assert float(learning_rate(config, 10)(0)) == pytest.approx(1e-3)
    long = OptimizerConfig(learning_rate=1e-3, schedule=schedule, warmup_steps=20)
    assert float(learning_rate(long, 10)(10)) == pytest.approx(5e-4)


def test_what_decays():
    matrix, vector, stacked = jnp.ones((2, 2)), jnp.ones(2), jnp.ones((3, 2))
    params = {
        "embedding": matrix,
        "final_norm": vector,
        "layers": {
            "0": {"norm": vector, "mixer": {"A_log": vector, "D": vector, "dt_bias": vector, "conv_bias": vector}},
            "1": {"norm": stacked, "mixer": {"conv_weight": matrix, "D": stacked, "A_log": stacked, "x_proj": matrix}},
            "2": {"mixer": {"router": matrix, "router_bias": stacked, "q_norm": stacked, "o_bias": stacked}},
        },
    }
    paths = jax.tree_util.tree_leaves_with_path(decayed(params))
    got = {jax.tree_util.keystr(path, simple=True, separator="/") for path, decays in paths if decays}
    assert got == {"embedding", "layers/1/mixer/conv_weight", "layers/1/mixer/x_proj", "layers/2/mixer/router"}


def test_first_step_is_adamw_written_out():
    """Adam's first step is the sign of the gradient (eps aside); the decay is rate * weight_decay * parameter."""
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5, clip_norm=1e9)
    params = {"weight": jnp.array([[2.0, -4.0]]), "norm": jnp.array([3.0, 3.0])}
    optimizer = make_optimizer(config, total_steps=1)
    gradient = {"weight": jnp.array([[0.3, -7.0]]), "norm": jnp.array([-0.1, 5.0])}
    changes, _ = optimizer.update(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(changes["weight"], [[-0.1 - 0.1, 0.1 + 0.2]], rtol=1e-5)
    np.testing.assert_allclose(changes["norm"], [0.1, -0.1], rtol=1e-5)


def test_three_steps_follow_the_recurrence():
    config = OptimizerConfig(learning_rate=0.01, b1=0.8, b2=0.9, eps=1e-3, clip_norm=0.5, warmup_steps=2)
    optimizer = make_optimizer(config, total_steps=3)
    params = {"weight": jnp.array([[1.0, -1.0]])}
    state = optimizer.init(params)
    w, m, v = np.array([[1.0, -1.0]]), 0.0, 0.0
    for step, gradient in enumerate(([[3.0, -4.0]], [[0.3, 0.1]], [[-0.2, 8.0]])):
        g = np.array(gradient)
        changes, state = optimizer.update({"weight": jnp.array(gradient)}, state, params)
        params = optax.apply_updates(params, changes)
        g = g * min(1.0, 0.5 / np.sqrt((g**2).sum()))
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        m_hat, v_hat = m / (1 - 0.8 ** (step + 1)), v / (1 - 0.9 ** (step + 1))
        w = w - 0.01 * min(step / 2, 1) * m_hat / (np.sqrt(v_hat) + 1e-3)
        np.testing.assert_allclose(params["weight"], w, rtol=1e-5)
