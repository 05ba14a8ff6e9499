"""On-policy distillation: closed forms, and its expected gradient with every outcome enumerated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.loss import mopd_loss


def losses(logprobs, **arrays):
    def mean(logprobs):
        loss, metrics = mopd_loss(logprobs, **arrays)
        return loss.mean, metrics

    return jax.jit(jax.value_and_grad(mean, has_aux=True))(jnp.asarray(logprobs, jnp.float32))


def by_row(logprobs, teacher, sampler):
    """The loss of each row alone, in a wide band."""

    def one(logprobs, teacher, sampler):
        loss, _ = mopd_loss(
            logprobs[None], teacher_logprobs_BT=teacher[None], sampler_logprobs_BT=sampler[None],
            mask_BT=jnp.ones((1, logprobs.size), bool), band=(1e-6, 1e6),
        )  # fmt: skip
        return loss.mean

    return jax.vmap(one)(logprobs, teacher, sampler)


def test_a_teacher_equal_to_the_student_teaches_nothing():
    logprobs = -np.random.default_rng(0).random((3, 5)).astype(np.float32)
    (loss, metrics), gradient = losses(
        logprobs, teacher_logprobs_BT=logprobs, sampler_logprobs_BT=logprobs, mask_BT=np.ones((3, 5), bool)
    )
    assert loss == 0 and (gradient == 0).all() and metrics["reverse_kl"].mean == 0


@pytest.mark.parametrize("sampler", ["student", "another"])
def test_expected_gradient_is_that_of_the_reverse_kl(sampler):
    """Every outcome of one draw, weighted by its probability."""
    rng = np.random.default_rng(1)
    vocabulary = 6
    student, teacher = jnp.asarray(rng.normal(size=(2, vocabulary)), jnp.float32)
    other = student if sampler == "student" else student + 0.3 * rng.normal(size=vocabulary)
    draw = jax.nn.softmax(other)

    def expected(logits):
        losses = by_row(
            jax.nn.log_softmax(logits)[:, None], jax.nn.log_softmax(teacher)[:, None], jnp.log(draw)[:, None]
        )
        return (draw * losses).sum()

    def reverse_kl(logits):
        logprobs = jax.nn.log_softmax(logits)
        return (jnp.exp(logprobs) * (logprobs - jax.nn.log_softmax(teacher))).sum()

    want = jax.jit(jax.grad(reverse_kl))(student)
    np.testing.assert_allclose(jax.jit(jax.grad(expected))(student), want, rtol=1e-4, atol=1e-6)
    assert np.abs(want).max() > 0.01


def test_expected_gradient_over_two_steps():
    """A two-token policy with state: the gradient of every draw (y1, y2) adds up to the per-state reverse KL's."""
    rng = np.random.default_rng(2)
    vocabulary = 3
    teacher_first, teacher_second = rng.normal(size=vocabulary), rng.normal(size=(vocabulary, vocabulary))
    logits = {
        "first": jnp.asarray(rng.normal(size=vocabulary), jnp.float32),
        "second": jnp.asarray(rng.normal(size=(vocabulary, vocabulary)), jnp.float32),
    }
    first, second = np.divmod(np.arange(vocabulary**2), vocabulary)

    def of_draws(logits_first, logits_second):
        return jnp.stack(
            [jax.nn.log_softmax(logits_first)[first], jax.nn.log_softmax(logits_second)[first, second]], axis=1
        )

    teacher = of_draws(teacher_first, teacher_second)
    probability = jnp.exp(of_draws(**{f"logits_{k}": v for k, v in logits.items()}).sum(axis=1))

    def expected(logits):
        logprobs = of_draws(logits["first"], logits["second"])
        return (probability * by_row(logprobs, teacher, logprobs)).sum()

    def per_state_reverse_kl(logits):
        def kl(p, q):
            return (jnp.exp(jax.nn.log_softmax(p)) * (jax.nn.log_softmax(p) - jax.nn.log_softmax(q))).sum(-1)

        reached = jax.lax.stop_gradient(jax.nn.softmax(logits["first"]))
        return 0.5 * (kl(logits["first"], teacher_first) + (reached * kl(logits["second"], teacher_second)).sum())

    got, want = jax.jit(jax.grad(expected))(logits), jax.jit(jax.grad(per_state_reverse_kl))(logits)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6), got, want)


def test_band_weighs_0_4_and_2_5_by_nothing():
    ratios = np.array([[0.4, 0.75, 2.5]], np.float32)
    _, gradient = losses(
        np.log(ratios) - 1, teacher_logprobs_BT=np.log(ratios), sampler_logprobs_BT=np.full((1, 3), -1.0),
        mask_BT=ratios > 0,
    )  # fmt: skip
    np.testing.assert_allclose(gradient, [[0, -0.75 / 3, 0]], rtol=1e-6)


def test_value_advantage_clip_and_denominators():
    logprobs, gap = np.array([[-1.0, -2.0, -0.5, -4.0]]), np.array([[0.5, -3.0, 0.25, 7.0]])
    mask, segments = np.array([[True, True, True, False]]), np.array([[1, 1, 2, 2]])
    arrays = {"teacher_logprobs_BT": logprobs + gap, "sampler_logprobs_BT": logprobs, "mask_BT": mask}
    (loss, metrics), gradient = losses(logprobs, advantage_clip=1.0, segments_BT=segments, **arrays)
    values = -np.array([0.5, -1.0, 0.25]) * logprobs[0, :3]
    np.testing.assert_allclose(loss, (values[:2].mean() + values[2]) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-0.5 / 4, 1.0 / 4, -0.25 / 2, 0]], rtol=1e-6)
    np.testing.assert_allclose(metrics["reverse_kl"].mean, -gap[0, :3].mean(), rtol=1e-6)
    (by_row, _), _ = losses(logprobs, advantage_clip=1.0, **arrays)
    np.testing.assert_allclose(by_row, values.mean(), rtol=1e-6)
    (by_token, _), _ = losses(logprobs, advantage_clip=1.0, aggregate="token", **arrays)
    np.testing.assert_allclose(by_token, values.mean(), rtol=1e-6)


def test_out_of_band_tokens_stay_in_their_samples_denominator():
    logprobs, sampler = np.array([[-1.0, -1.0], [-1.0, -1.0]]), np.array([[-1.0, -3.0], [-1.0, -1.0]])
    mask = np.array([[True, True], [False, False]])
    (loss, metrics), gradient = losses(
        logprobs, teacher_logprobs_BT=np.zeros((2, 2)), sampler_logprobs_BT=sampler, mask_BT=mask
    )
    np.testing.assert_allclose(gradient, [[-0.5, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(loss, 0.5, rtol=1e-6)
    assert metrics["out_of_band_fraction"].mean == 0.5


@pytest.mark.parametrize("field", ["teacher_logprobs_BT", "sampler_logprobs_BT"])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_unknown_and_masked_log_probs(field, value):
    logprobs = np.full((1, 4), -1.0, np.float32)
    arrays = {
        "teacher_logprobs_BT": np.full((1, 4), -0.5, np.float32),
        "sampler_logprobs_BT": np.full((1, 4), -1.0, np.float32),
    }
    arrays[field][0, 1] = value
    arrays[field][0, 3] = value
    (loss, metrics), gradient = losses(logprobs, mask_BT=np.array([[True, True, True, False]]), **arrays)
    np.testing.assert_allclose(gradient, [[-0.5 / 3, 0, -0.5 / 3, 0]], rtol=1e-6)
    np.testing.assert_allclose(loss, 1 / 3, rtol=1e-6)
    assert metrics["unknown_fraction"] == (1, 3)
    assert all(np.isfinite(m.mean) for m in metrics.values())


def test_metrics():
    logprobs = np.log(np.array([[0.2, 0.3, 0.9]]))
    sampler, teacher = np.log(np.array([[0.25, 0.1, 0.5]])), np.log(np.array([[0.4, 0.3, 0.1]]))
    mask = np.array([[True, True, False]])
    _, metrics = mopd_loss(
        jnp.asarray(logprobs, jnp.float32), teacher_logprobs_BT=teacher, sampler_logprobs_BT=sampler, mask_BT=mask,
        entropy_BT=np.array([[1.0, 3.0, np.nan]]),
    )  # fmt: skip
    got = {name: float(m.mean) for name, m in metrics.items()}
    ratio = np.array([0.8, 3.0])
    want = {
        "ratio_mean": ratio.mean(), "ratio_max": 3.0, "clip_fraction": 0.0, "out_of_band_fraction": 0.5,
        "unknown_fraction": 0.0, "sampler_gap_kl": (ratio - 1 - np.log(ratio)).mean(), "entropy": 2.0,
        "reverse_kl": (logprobs - teacher)[0, :2].mean(),
    }  # fmt: skip
    assert got == pytest.approx(want, rel=1e-5)


def test_finite_for_finite_inputs():
    for gap in (-1e6, -30.0, 30.0, 1e6):
        zeros = np.zeros((1, 2))
        (loss, metrics), gradient = losses(
            zeros - 1, teacher_logprobs_BT=zeros + gap, sampler_logprobs_BT=zeros - gap, mask_BT=zeros == 0
        )
        assert np.isfinite(loss) and np.isfinite(gradient).all()
        assert all(np.isfinite(m.mean) for m in metrics.values())


def test_mistakes_are_refused():
    zeros = jnp.zeros((1, 2))
    arrays = {"teacher_logprobs_BT": zeros, "mask_BT": zeros == 0}
    with pytest.raises(ValueError, match="aggregate='row'"):
        mopd_loss(zeros, sampler_logprobs_BT=zeros, aggregate="row", **arrays)
    with pytest.raises(ValueError, match="sampler_logprobs_BT"):
        mopd_loss(zeros, sampler_logprobs_BT=None, **arrays)
    loss, metrics = mopd_loss(zeros, sampler_logprobs_BT=None, band=None, **arrays)
    assert loss.total == 0 and metrics["ratio_mean"].mean == 1
