"""GRPO against a version in NumPy float64, token by token, whose gradient is written out by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.loss import grpo_loss

B, T, V = 3, 8, 5
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 0, 0, 0]])
METRICS = {"ratio_mean", "ratio_max", "clip_fraction", "out_of_band_fraction", "unknown_fraction", "sampler_gap_kl"}


def problem(seed=0, spread=0.5):
    """Logits and arrays in float64, with log-probs near to those of the logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(B, T, V))
    actions = rng.integers(0, V, size=(B, T))
    near = log_softmax(logits)[np.arange(B)[:, None], np.arange(T), actions]
    arrays = {
        "advantages_BT": rng.normal(size=(B, T)),
        "mask_BT": (rng.random((B, T)) < 0.75) & (SEGMENTS > 0),
        "sampler_logprobs_BT": near + spread * rng.normal(size=(B, T)),
        "old_logprobs_BT": near + spread * rng.normal(size=(B, T)),
        "reference_logprobs_BT": near + spread * rng.normal(size=(B, T)),
    }
    arrays["mask_BT"][2, 2:5] = False  # a dead segment
    return logits, actions, arrays


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def by_definition(
    logits, actions, *, advantages_BT, mask_BT, sampler_logprobs_BT, old_logprobs_BT, reference_logprobs_BT, kl_coef,
    band, aggregate, segments_BT, clip_low, clip_high,
):  # fmt: skip
    """(loss, its gradient at the logits)."""
    log_all = log_softmax(logits)
    samples = {}
    for b, t in itertools.product(range(B), range(T)):
        if mask_BT[b, t]:
            sample = "all" if aggregate == "token" else (b, 0 if segments_BT is None else segments_BT[b, t])
            samples.setdefault(sample, []).append((b, t))
    loss, gradient = 0.0, np.zeros_like(logits)
    for tokens in samples.values():
        for b, t in tokens:
            logp, A = log_all[b, t, actions[b, t]], advantages_BT[b, t]
            train = logp if old_logprobs_BT is None else old_logprobs_BT[b, t]
            w = 1.0
            if band is not None:
                r = np.exp(train - sampler_logprobs_BT[b, t])
                w = r if band[0] <= r <= band[1] else 0.0
            ratio = np.exp(logp - train)
            value, slope = -w * ratio * A, -w * ratio * A
            if old_logprobs_BT is not None:
                limited = np.clip(ratio, 1 - clip_low, 1 + clip_high)
                if limited * A < ratio * A:
                    value, slope = -w * limited * A, 0.0
            if kl_coef:
                d = reference_logprobs_BT[b, t] - logp
                value += kl_coef * (np.exp(d) - d - 1)
                slope += kl_coef * (1 - np.exp(d))
            share = 1 / len(tokens) / len(samples)
            loss += share * value
            onehot = np.eye(V)[actions[b, t]]
            gradient[b, t] += share * slope * (onehot - np.exp(log_all[b, t]))
    return loss, gradient


def run(logits, actions, **arrays):
    def mean(logits):
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
        loss, metrics = grpo_loss(logprobs, **arrays)
        return loss.mean, metrics

    return jax.value_and_grad(mean, has_aux=True)(jnp.asarray(logits, jnp.float32))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("band", [None, (0.5, 2.0)])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize(("aggregate", "segmented"), [("token", True), ("sample", False), ("sample", True)])
def test_loss_and_gradient_equal_the_definition(old, band, kl_coef, aggregate, segmented):
    logits, actions, arrays = problem()
    if not old:
        arrays["old_logprobs_BT"] = None
    settings = {
        "kl_coef": kl_coef, "band": band, "aggregate": aggregate, "clip_low": 0.2, "clip_high": 0.28,
        "segments_BT": SEGMENTS if segmented else None,
    }  # fmt: skip
    want, want_gradient = by_definition(logits, actions, **arrays, **settings)
    (got, _), gradient = run(logits, actions, **arrays, **settings)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-4, atol=1e-6)
    assert np.abs(want_gradient).max() > 1e-3


def test_on_policy_ratio_is_exactly_one():
    logits, actions, arrays = problem()
    mask, advantages = arrays["mask_BT"], arrays["advantages_BT"].astype(np.float32)
    (loss, metrics), gradient = run(logits, actions, advantages_BT=advantages, mask_BT=mask)
    np.testing.assert_allclose(loss, -advantages[mask].mean(dtype=np.float64), rtol=1e-6)
    assert metrics["ratio_mean"].mean == 1 and metrics["ratio_max"].mean == 1 and metrics["sampler_gap_kl"].mean == 0

    def plain(logits):
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
        return jnp.where(mask, -advantages * logprobs, 0).sum() / mask.sum()

    np.testing.assert_allclose(gradient, jax.grad(plain)(jnp.asarray(logits, jnp.float32)), atol=1e-7)


def test_band_is_a_mask_and_its_ends_belong_to_it():
    ratios = np.array([[0.4, 0.5, 0.75, 1.0, 2.0, 2.5]], np.float32)
    train = jnp.zeros_like(ratios)
    gradient = jax.grad(
        lambda logprobs: grpo_loss(
            logprobs, advantages_BT=-jnp.ones_like(ratios), mask_BT=ratios > 0, band=(0.5, 2.0),
            sampler_logprobs_BT=-np.log(ratios),
        )[0].total
    )(train)  # fmt: skip
    np.testing.assert_allclose(gradient, [[0, 0.5, 0.75, 1.0, 2.0, 0]], rtol=1e-6)


def test_zero_advantages_have_exactly_no_gradient():
    logits, actions, arrays = problem()
    arrays["advantages_BT"] = np.zeros((B, T))
    (loss, _), gradient = run(logits, actions, band=(0.5, 2.0), **arrays)
    assert loss == 0 and (gradient == 0).all()


@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("aggregate", ["token", "sample"])
def test_masked_positions_may_hold_anything(filler, aggregate):
    _, _, arrays = problem()
    mask = arrays.pop("mask_BT")
    rng = np.random.default_rng(1)
    arrays |= {"logprobs_BT": -rng.random((B, T)), "entropy_BT": rng.random((B, T))}
    settings = {"mask_BT": mask, "band": (0.5, 2.0), "kl_coef": 0.1, "aggregate": aggregate, "segments_BT": SEGMENTS}

    def evaluate(arrays):
        logprobs = jnp.asarray(arrays["logprobs_BT"], jnp.float32)
        rest = {name: jnp.asarray(x, jnp.float32) for name, x in arrays.items() if name != "logprobs_BT"}
        loss = lambda logprobs: (lambda w, m: (w.mean, m))(*grpo_loss(logprobs, **rest, **settings))  # noqa: E731
        return jax.value_and_grad(loss, has_aux=True)(logprobs)

    clean = evaluate(arrays)
    filled = evaluate({name: np.where(mask, x, filler) for name, x in arrays.items()})
    jax.tree.map(np.testing.assert_array_equal, clean, filled)


@pytest.mark.parametrize("missing", ["sampler_logprobs_BT", "old_logprobs_BT", "reference_logprobs_BT"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_unknown_tokens_weigh_nothing_and_stay_in_the_denominator(missing, value):
    logits, actions, arrays = problem(spread=0.1)
    b, t = np.argwhere(arrays["mask_BT"])[3]
    arrays[missing][b, t] = value
    settings = {"band": (0.5, 2.0), "kl_coef": 0.3}
    (loss, metrics), gradient = run(logits, actions, **arrays, **settings)
    arrays[missing][b, t] = -1.0
    (_, whole), other = run(logits, actions, **arrays, **settings)
    assert np.isfinite(loss) and (gradient[b, t] == 0).all() and (other[b, t] != 0).any()
    elsewhere = np.ones((B, T), bool)
    elsewhere[b, t] = False
    np.testing.assert_array_equal(gradient[elsewhere], other[elsewhere])
    count = arrays["mask_BT"].sum()
    assert metrics["unknown_fraction"] == (1, count) and whole["unknown_fraction"] == (0, count)
    assert metrics["ratio_mean"].weight == count


def test_a_token_that_truncation_cut_from_the_policy_weighs_nothing():
    logprobs = jnp.array([[-1.0, -jnp.inf, -2.0]])
    loss = lambda x: grpo_loss(x, advantages_BT=jnp.ones((1, 3)), mask_BT=jnp.ones((1, 3), bool))[0].mean  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(logprobs)
    np.testing.assert_allclose(value, -2 / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-1 / 3, 0, -1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("gap", [-1e30, -1e3, -25.0, 25.0, 1e3, 1e30])
def test_finite_inputs_give_finite_results(gap):
    zeros = jnp.zeros((1, 2))

    def mean(logprobs):
        loss, metrics = grpo_loss(
            logprobs, advantages_BT=jnp.array([[1.0, -1.0]]), mask_BT=zeros == 0, sampler_logprobs_BT=zeros + gap,
            old_logprobs_BT=zeros - gap, reference_logprobs_BT=zeros + gap, kl_coef=0.1, band=(0.0, 1e30),
        )  # fmt: skip
        return loss.mean, metrics

    (loss, metrics), gradient = jax.value_and_grad(mean, has_aux=True)(zeros)
    assert np.isfinite(loss) and np.isfinite(gradient).all()
    assert all(np.isfinite(m.mean) for m in metrics.values())
    largest = metrics["ratio_max"].total
    assert largest <= np.exp(np.float32(20)) * (1 + 1e-6)


def test_metrics():
    ratios, advantages = np.array([0.4, 1.0, 1.5, 3.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0, 9.0])
    policy_ratio = np.array([1.5, 0.7, 1.0, 1.5, 1.0])
    old = np.full(5, -1.0)
    mask = np.array([True] * 4 + [False])
    logprobs = old + np.log(policy_ratio)
    _, metrics = grpo_loss(
        jnp.asarray(logprobs[None], jnp.float32), advantages_BT=advantages[None], mask_BT=mask[None],
        old_logprobs_BT=old[None], sampler_logprobs_BT=(old - np.log(ratios))[None], band=(0.5, 3.5),
        entropy_BT=np.arange(5.0)[None], reference_logprobs_BT=logprobs[None] + 0.1,
    )  # fmt: skip
    assert set(metrics) == METRICS | {"entropy", "reference_kl"}
    assert all(m.total.shape == () and m.total.dtype == jnp.float32 for m in metrics.values())
    got = {name: float(m.mean) for name, m in metrics.items()}
    assert got["ratio_mean"] == pytest.approx(ratios[:4].mean(), rel=1e-6)
    assert got["ratio_max"] == pytest.approx(3.0, rel=1e-6)
    assert got["out_of_band_fraction"] == 0.25
    assert got["clip_fraction"] == 0.25  # token 3; token 0 would be clipped too, had the band not removed it
    assert got["unknown_fraction"] == 0
    assert got["sampler_gap_kl"] == pytest.approx((ratios - 1 - np.log(ratios))[:4].mean(), rel=1e-5)
    assert got["entropy"] == 1.5
    assert got["reference_kl"] == pytest.approx(np.exp(0.1) - 1.1, rel=1e-4)
    assert metrics["ratio_max"].weight == 1 and metrics["entropy"].weight == 4


def test_without_sampler_the_old_policy_is_the_sampler():
    logits, actions, arrays = problem()
    mask, old = arrays["mask_BT"], arrays["old_logprobs_BT"]
    logprobs = np.take_along_axis(log_softmax(logits), actions[..., None], -1)[..., 0]
    _, metrics = grpo_loss(
        jnp.asarray(logprobs), advantages_BT=arrays["advantages_BT"], mask_BT=mask, old_logprobs_BT=old
    )
    assert set(metrics) == METRICS
    np.testing.assert_allclose(metrics["ratio_mean"].mean, np.exp(logprobs - old)[mask].mean(), rtol=1e-5)
    assert metrics["out_of_band_fraction"].total == 0


@pytest.mark.parametrize("aggregate", ["token", "sample"])
def test_a_batch_without_live_tokens(aggregate):
    zeros = jnp.zeros((2, 3))
    loss = lambda x: grpo_loss(x, advantages_BT=zeros, mask_BT=zeros > 0, aggregate=aggregate)[0].mean  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(zeros)
    assert value == 0 and (gradient == 0).all()


@pytest.mark.parametrize("aggregate", ["token", "sample"])
def test_parts_add_up_to_the_whole(aggregate):
    logits, actions, arrays = problem()
    logprobs = np.take_along_axis(log_softmax(logits), actions[..., None], -1)[..., 0]
    arrays |= {"segments_BT": SEGMENTS}
    whole, _ = grpo_loss(logprobs, aggregate=aggregate, **arrays)
    parts = [
        grpo_loss(logprobs[b : b + 1], aggregate=aggregate, **{k: v[b : b + 1] for k, v in arrays.items()})[0]
        for b in range(B)
    ]
    added = parts[0] + parts[1] + parts[2]
    np.testing.assert_allclose(added.total, whole.total, rtol=1e-6)
    assert added.weight == whole.weight


def test_only_the_log_probs_carry_a_gradient():
    _, _, arrays = problem()
    mask = arrays.pop("mask_BT")
    inputs = {name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()}
    gradient = jax.grad(
        lambda inputs: grpo_loss(jnp.zeros((B, T)) - 1, mask_BT=mask, band=(0.1, 10), kl_coef=0.1, **inputs)[0].mean
    )(inputs)
    assert all((g == 0).all() for g in jax.tree.leaves(gradient))


def test_half_precision_inputs_are_computed_in_float32():
    half = jnp.full((1, 2), -1.0, jnp.bfloat16)
    loss, metrics = grpo_loss(half, advantages_BT=half, mask_BT=half < 0, sampler_logprobs_BT=half, band=(0.5, 2.0))
    assert loss.total.dtype == loss.weight.dtype == jnp.float32
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(metrics))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregate": "mean"}, "aggregate='mean'"),
        ({"band": (0.5, 2.0)}, "sampler_logprobs_BT"),
        ({"kl_coef": 0.1}, "reference_logprobs_BT"),
    ],
)
def test_mistakes_are_refused(settings, message):
    zeros = jnp.zeros((1, 2))
    with pytest.raises(ValueError, match=message):
        grpo_loss(zeros, advantages_BT=zeros, mask_BT=zeros == 0, **settings)
