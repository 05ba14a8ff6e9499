"""Attention as its definition says, with all scores in memory; in float64 where it is given float64."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.attention.visibility import Visibility, mask

FLOOR = -1e30  # the log-sum-exp of a query that sees nothing: finite, so that no inf - inf arises


def forward(
    q_BTHD: Float[Array, "B T H D"],
    k_BSKD: Float[Array, "B S K D"],
    v_BSKD: Float[Array, "B S K D"],
    seen: Visibility,
    scale: float,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B T H"]]:
    """The output in q's dtype, and the log-sum-exp of the scores, at least float32."""
    dtype = jnp.promote_types(q_BTHD.dtype, jnp.float32)
    ratio = q_BTHD.shape[2] // k_BSKD.shape[2]
    q, k, v = (a.astype(dtype) for a in (q_BTHD, k_BSKD, v_BSKD))
    k, v = jnp.repeat(k, ratio, axis=2), jnp.repeat(v, ratio, axis=2)
    sees = mask(seen)[:, :, None, :]
    scores = jnp.where(sees, jnp.einsum("bthd,bshd->bths", q, k, precision="highest") * scale, -jnp.inf)
    top = jnp.maximum(scores.max(-1), FLOOR)
    weights = jnp.exp(scores - top[..., None])
    total = weights.sum(-1)
    total = jnp.where(total > 0, total, 1.0)
    out = jnp.einsum("bths,bshd->bthd", weights / total[..., None], v, precision="highest")
    return out.astype(q_BTHD.dtype), top + jnp.log(total)
