"""Root-mean-square norms, always computed in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... d"], weight: Float[Array, " d"], *, eps: float) -> Float[Array, "... d"]:
    """x / sqrt(mean(x^2) + eps) * weight, cast once, at the end, to x's dtype (Zhang and Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * scale * weight.astype(jnp.float32)).astype(x.dtype)


def gated_group_norm(
    y: Float[Array, "... d"], gate: Float[Array, "... d"], weight: Float[Array, " d"], *, groups: int, eps: float
) -> Float[Array, "... d"]:
    """Mamba-2's norm: y * silu(gate), then an RMS norm over each of `groups` equal parts. float32 out."""
    gated = y.astype(jnp.float32) * jax.nn.silu(gate.astype(jnp.float32))
    parts = gated.reshape(*gated.shape[:-1], groups, -1)
    parts = parts * jax.lax.rsqrt(jnp.mean(parts * parts, axis=-1, keepdims=True) + eps)
    return parts.reshape(gated.shape) * weight.astype(jnp.float32)
