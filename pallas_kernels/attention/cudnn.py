"""cuDNN's attention, by way of jax.nn: whole masks, so that no tile of a packed row is skipped."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.attention.visibility import Visibility, mask


def forward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    seen: Visibility,
    scale: float,
) -> Float[Array, "B T H D"]:
    """Differentiable as it is; there is no log-sum-exp."""
    sees = mask(seen)
    out = jax.nn.dot_product_attention(q_BTHD, k_BSKD, v_BSKD, mask=sees[:, None], scale=scale, implementation="cudnn")
    return jnp.where(sees.any(-1)[:, :, None, None], out, 0)
