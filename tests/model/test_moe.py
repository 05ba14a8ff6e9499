"""Expert dispatch against a product for every slot; the router and the balance loss against their definitions."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply, presets
from cascade_jax.model.moe import Experts, choose, chosen_experts, sequence_balance

D, F, E = 12, 10, 6
ROUTER = ModelConfig(
    vocab_size=1, width=D, pattern="E", experts=8, experts_per_token=3, expert_width=F, routed_scale=2.5
)


def experts(rng, *, gated):
    up, gate = (rng.standard_normal((E, D, F)).astype(np.float32) for _ in range(2))
    return Experts(up, rng.standard_normal((E, F, D)).astype(np.float32), gate if gated else None)


def every_slot(experts, x, ids, weights):
    """A copy of its expert's matrices for every slot of every token."""
    up = jnp.einsum("nd,nkdf->nkf", x, experts.up_EDF[ids])
    if experts.gate_EDF is None:
        h = jnp.maximum(up, 0) ** 2
    else:
        gate = jnp.einsum("nd,nkdf->nkf", x, experts.gate_EDF[ids])
        h = gate / (1 + jnp.exp(-gate)) * up
    return jnp.einsum("nk,nkf,nkfd->nd", weights, h, experts.down_EFD[ids])


ROUTES = {
    "spread": lambda rng: np.stack([rng.permutation(E)[:2] for _ in range(40)]),
    "one expert takes all": lambda rng: np.tile([[4, 0]], (40, 1)),
    "one token": lambda rng: np.asarray([[5, 2]]),
    "every expert": lambda rng: np.stack([rng.permutation(E) for _ in range(9)]),
}


@jax.jit
def both_ways(matrices, x, ids, weights, direction):
    """Outputs and gradients (matrices, x, weights) by tiles and by copies."""

    def one(f):
        out, pull = jax.vjp(lambda *a: f(a[0], a[1], ids, a[2]), matrices, x, weights)
        return out, pull(direction)

    tiled = lambda matrices, x, ids, weights: chosen_experts(matrices, x, ids.T, weights.T)  # noqa: E731
    return one(tiled), one(every_slot)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_tiles_equal_a_product_for_every_slot(route, gated):
    rng = np.random.default_rng(0)
    ids = ROUTES[route](rng).astype(np.int32)
    x, direction = rng.standard_normal((2, len(ids), D)).astype(np.float32)
    weights = rng.uniform(0.1, 1, ids.shape).astype(np.float32)
    got, want = both_ways(experts(rng, gated=gated), x, ids, weights, direction)
    scale = np.abs(want[0]).max()  # entries that nearly cancel have the rounding of the large ones
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=5e-7 * scale)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * scale), got[1], want[1])


@pytest.mark.parametrize("activation", ["relu2", "swiglu"])
def test_zeros_beside_the_experts_change_nothing_and_stay_zeros(activation):
    narrow = replace(presets.get("tiny"), expert_width=136, activation=activation)
    wide = apply.pad_experts(narrow)
    assert (wide.expert_width, wide.expert_columns) == (136, 256)
    params = apply.init(narrow, jax.random.key(0))
    grown = apply.grown(wide, params)
    jax.tree.map(np.testing.assert_array_equal, apply.init(wide, jax.random.key(0)), grown)
    ids = np.arange(32).reshape(2, 16)

    def step(config, params):
        loss = lambda params: (apply.hidden(config, params, ids)[0] ** 2).sum()  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(params)
        optimizer = optax.adamw(1e-2)
        update, _ = optimizer.update(gradient, optimizer.init(params), params)
        return value, optax.apply_updates(params, update)

    (value, after), (wide_value, wide_after) = (
        jax.jit(step, static_argnums=0)(*of) for of in ((narrow, params), (wide, grown))
    )
    np.testing.assert_allclose(wide_value, value, rtol=1e-6)
    # Adam's first step is the gradient's sign: entries without one may go either way.
    cut = jax.tree.map(lambda a, b: np.asarray(a)[tuple(map(slice, b.shape))], wide_after, after)
    off = [np.mean(np.abs(a - b) > 1e-5) for a, b in zip(*map(jax.tree.leaves, (cut, after)), strict=True)]
    assert max(off) < 0.01
    jax.tree.map(np.testing.assert_array_equal, apply.grown(wide, cut), wide_after)  # zeros all around


@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_router_chooses_by_biased_scores_and_weighs_by_unbiased_ones(groups):
    rng = np.random.default_rng(2)
    config = replace(ROUTER, router_groups=groups[0], router_top_groups=groups[1])
    logits, bias = rng.standard_normal((50, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    routing = choose(config, logits, bias)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for token in range(50):
        choice = scores[token] + bias
        by_group = np.sort(choice.reshape(groups[0], -1), axis=1)[:, -2:].sum(1)
        best = np.argsort(-by_group)[: groups[1]]
        choice[~np.isin(np.arange(8) // (8 // groups[0]), best)] = -np.inf
        ids = np.argsort(-choice)[:3]
        np.testing.assert_array_equal(routing.ids_Nk[token], ids)
        want = 2.5 * scores[token, ids] / scores[token, ids].sum()
        np.testing.assert_allclose(routing.weights_Nk[token], want, rtol=1e-5)


def test_softmax_router():
    logits = np.random.default_rng(3).standard_normal((20, 8)).astype(np.float32)
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    top = np.sort(scores, axis=-1)[:, :-4:-1]
    config = replace(ROUTER, router="softmax", routed_scale=1.0)
    np.testing.assert_allclose(choose(config, logits, None).weights_Nk, top / top.sum(-1, keepdims=True), rtol=1e-5)
    config = replace(config, norm_top_k=False)
    np.testing.assert_allclose(choose(config, logits, None).weights_Nk, top, rtol=1e-5)


def test_no_gradient_reaches_the_bias_and_some_the_scores():
    logits, bias = np.random.default_rng(4).standard_normal((20, 8)).astype(np.float32), np.zeros(8, np.float32)
    by_logits, by_bias = jax.grad(lambda lg, b: choose(ROUTER, lg, b).weights_Nk[:, 0].sum(), (0, 1))(logits, bias)
    assert (by_bias == 0).all()
    assert np.abs(by_logits).max() > 1e-3


def test_sequence_balance_is_a_mean_over_sequences():
    rng = np.random.default_rng(5)
    scores = rng.uniform(0.1, 1, (2, 12, 8)).astype(np.float32)
    segments = np.asarray([[1] * 5 + [2] * 4 + [0] * 3, [0] * 2 + [1] * 10], np.int32)
    total = 0.0
    for row, number in ((0, 1), (0, 2), (1, 1)):
        share = scores[row, segments[row] == number].astype(np.float64)
        share /= share.sum(-1, keepdims=True)
        taken = np.zeros(8)
        for token in share:
            taken[np.argsort(-token)[:3]] += 1
        total += 8 * (taken / (len(share) * 3) * share.mean(0)).sum()
    loss = sequence_balance(jnp.asarray(scores), jnp.asarray(segments), experts_per_token=3)
    np.testing.assert_allclose(loss.total, total, rtol=1e-5)
    assert loss.weight == 3


def test_aux_counts_no_padding(hybrid, weights):
    rng = np.random.default_rng(6)
    config = replace(hybrid, pattern="E-E")
    ids = rng.integers(0, config.vocab_size, (2, 9)).astype(np.int32)
    segments = np.asarray([[1] * 5 + [0] * 4, [0] * 9], np.int32)
    _, aux = jax.jit(lambda p: apply.hidden(config, p, ids, segments, expert_ids=True))(weights(config, 6))
    assert aux.expert_counts.shape == (2, config.experts)
    assert aux.expert_ids.shape == (2, 2, 9, config.experts_per_token)
    for layer in range(2):
        want = np.bincount(np.asarray(aux.expert_ids)[layer, 0, :5].ravel(), minlength=config.experts)
        np.testing.assert_array_equal(aux.expert_counts[layer], want)
    assert aux.balance_loss.weight == 1
    _, aux = apply.hidden(replace(config, pattern="-"), weights(replace(config, pattern="-"), 6), ids, segments)
    assert aux.expert_counts.shape == (0, config.experts)
    assert aux.balance_loss.mean == 0
    assert aux.expert_ids is None
