import jax
import jax.numpy as jnp
import numpy as np

from cascade_jax.loss import sft_loss

LOGPROBS = np.array([[-1.0, -2.0, -3.0], [-0.5, -0.25, -4.0]], np.float32)
MASK = np.array([[True, True, False], [False, True, True]])


def test_mean_over_live_tokens():
    loss, metrics = sft_loss(LOGPROBS, mask_BT=MASK)
    assert loss == (7.25, 4) and metrics["nll"] == (7.25, 4)


def test_row_weights():
    loss, metrics = sft_loss(LOGPROBS, mask_BT=MASK, row_weight_B=jnp.array([2.0, 0.5]))
    assert loss == (2 * 3 + 0.5 * 4.25, 2 * 2 + 0.5 * 2)
    assert metrics["nll"] == (7.25, 4)


def test_gradient_and_masked_positions():
    filled = jnp.where(MASK, LOGPROBS, jnp.nan)
    loss = lambda x, w: sft_loss(x, mask_BT=MASK, row_weight_B=w)[0].mean  # noqa: E731
    value, (gradient, of_weight) = jax.value_and_grad(loss, argnums=(0, 1))(filled, jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(value, (3 + 3 * 4.25) / 8, rtol=1e-6)
    np.testing.assert_allclose(gradient, -np.array([[1, 1, 0], [0, 3, 3]]) / 8, rtol=1e-6)
    assert (of_weight == 0).all()


def test_nothing_to_train_on():
    loss = lambda x: sft_loss(x, mask_BT=jnp.zeros_like(x, bool))[0].mean  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(jnp.asarray(LOGPROBS))
    assert value == 0 and (gradient == 0).all()
