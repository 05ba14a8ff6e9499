"""The definition, as plain jnp with all logits at once: exact, and as large as the vocabulary."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.api import Slopes, Statistics


def statistics(
    hidden_TD: Float[Array, "T D"], head_DV: Float[Array, "D V"], ids_TJ: Int[Array, "T J"], temperature: float
) -> Statistics:
    z = _logits(hidden_TD, head_DV, temperature)
    top = z.max(1)
    below = z - top[:, None]
    chosen = jnp.where(_places(ids_TJ, z.shape[1]), z[:, None], 0).sum(2)
    return Statistics(top, jnp.exp(below).sum(1), (jnp.exp(below) * below).sum(1), chosen)


def gradients(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    slopes: Slopes,
    temperature: float,
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    z = _logits(hidden_TD, head_DV, temperature)
    p = jnp.exp(z - slopes.norm_T[:, None])
    placed = jnp.where(_places(ids_TJ, z.shape[1]), slopes.placed_TJ[..., None], 0).sum(1)
    dz = (placed - p * (slopes.constant_T[:, None] + slopes.linear_T[:, None] * z)) / temperature
    hidden, head = hidden_TD.astype(z.dtype), head_DV.astype(z.dtype)
    return jnp.matmul(dz, head.T, precision="highest"), jnp.matmul(hidden.T, dz, precision="highest")


def logprobs(
    hidden_TD: Float[Array, "T D"], head_DV: Float[Array, "D V"], ids_TJ: Int[Array, "T J"], temperature: float
) -> tuple[Float[Array, "T J"], Float[Array, " T"]]:
    """The same results by jax.nn alone, for autodiff: what the statistics, the slopes and all kernels are held to."""
    log_p = jax.nn.log_softmax(_logits(hidden_TD, head_DV, temperature))
    entropy = -(jnp.exp(log_p) * log_p).sum(1)
    return jnp.where(_places(ids_TJ, log_p.shape[1]), log_p[:, None], 0).sum(2), entropy


def _logits(hidden: Array, head: Array, temperature: float) -> Float[Array, "T V"]:
    exact = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.matmul(hidden.astype(exact), head.astype(exact), precision="highest") / temperature


def _places(ids_TJ: Array, vocabulary: int) -> Array:
    return ids_TJ[..., None] == jnp.arange(vocabulary)
