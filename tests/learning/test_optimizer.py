"""Schedules, weight decay and the clip, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cascade_jax.config import OptimizerConfig
from cascade_jax.leaves import by_path
from cascade_jax.optimizer import decayed, learning_rate, make_optimizer, rules


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


def named():
    """The names that decide, each with a leaf of its rank."""
    matrix, vector, stacked = jnp.ones((2, 2)), jnp.ones(2), jnp.ones((3, 2))
    return {
        "embedding": matrix,
        "final_norm": vector,
        "layers": {
            "0": {"norm": vector, "mixer": {"A_log": vector, "D": vector, "dt_bias": vector, "conv_bias": vector}},
            "1": {"norm": stacked, "mixer": {"conv_weight": matrix, "D": stacked, "A_log": stacked, "x_proj": matrix}},
            "2": {"mixer": {"router": matrix, "router_bias": stacked, "q_norm": stacked, "o_bias": stacked}},
        },
    }


def test_what_decays():
    got = {path for path, decays in by_path(decayed(named())).items() if decays}
    assert got == {"embedding", "layers/1/mixer/conv_weight", "layers/1/mixer/x_proj", "layers/2/mixer/router"}


def test_what_muon_takes():
    assert {path for path, rule in by_path(rules(named())).items() if rule == "muon"} == {"layers/1/mixer/x_proj"}


def newton_schulz(m):
    """Five steps of the quintic towards the nearest orthogonal matrix (Jordan 2024), in float64."""
    x = m / np.linalg.norm(m)
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x


def test_muon_written_out():
    """Two steps: Nesterov momentum 0.95, an orthogonalised step per expert of RMS 0.2 * sqrt(max(D, F)), decay."""
    rng = np.random.default_rng(0)
    config = OptimizerConfig(name="muon", learning_rate=0.1, weight_decay=0.5, clip_norm=1e9)
    optimizer = make_optimizer(config, total_steps=2)
    params = {"head": jnp.ones((2, 3)), "layers": {"0": {"up": jnp.asarray(rng.normal(size=(2, 5, 3)), jnp.float32)}}}
    state = optimizer.init(params)
    w, m = np.array(params["layers"]["0"]["up"], np.float64), 0.0
    for step in (1, 2):
        g = rng.normal(size=(2, 5, 3))
        gradient = {"head": jnp.full((2, 3), 0.3), "layers": {"0": {"up": jnp.asarray(g, jnp.float32)}}}
        changes, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, changes)
        m = 0.95 * m + 0.05 * g
        ahead = 0.95 * m / (1 - 0.95 ** (step + 1)) + 0.05 * g / (1 - 0.95**step)
        w = w - 0.1 * (0.2 * 5**0.5 * np.stack([newton_schulz(each) for each in ahead]) + 0.5 * w)
        np.testing.assert_allclose(params["layers"]["0"]["up"], w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(params["head"], 0.95 * (0.95 - 0.1) - 0.1, rtol=1e-5)  # AdamW: the sign, and decay


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_rests_has_no_state(name):
    config = OptimizerConfig(name=name, freeze_router=True)
    optimizer = make_optimizer(config, total_steps=1, frozen=lambda path: not path.startswith("layers/2"))
    params = named()
    sizes = sorted(leaf.size for leaf in jax.tree.leaves(optimizer.init(params)) if leaf.size > 3)
    moving = [params["layers"]["2"]["mixer"][name].size for name in ("q_norm", "o_bias")]
    assert sizes == sorted([*moving, *moving])  # two moments each; Muon's counters and coefficients are smaller


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
