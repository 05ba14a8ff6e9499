"""Grouped-query attention over packed rows and over a cache."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import axes
from cascade_jax.model.cache import KeyValue
from cascade_jax.model.linear import EXACT, constant, normal, project, project_each
from cascade_jax.model.norm import rms_norm
from cascade_jax.model.ring import ring_attention
from pallas_kernels.attention import attention
from pallas_kernels.dispatch import preferred, target

QUERY_BLOCK = 1024  # longer rows are done in blocks, so that no (T, T) array is ever held; a CPU takes shorter whole


def rotate(x_BTHh: Float[Array, "B T H h"], positions_BT: Int[Array, "B T"], theta: float) -> Float[Array, "B T H h"]:
    """Rotary position embedding, half-split layout, on the whole head (Su et al. 2021)."""
    half = x_BTHh.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions_BT[:, :, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x1, x2 = jnp.split(x_BTHh.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x_BTHh.dtype)


def attend(
    q_BTHh: Float[Array, "B T H h"],
    keys_BKhC: Float[Array, "B K h C"],
    values_BKCh: Float[Array, "B K C h"],
    *,
    places_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"] | None = None,
    key_segments_BC: Int[Array, "B C"] | None = None,
) -> Float[Array, "B T H h"]:
    """Softmax attention: a query at place p sees keys 0..p, of its own segment where segments are given.

    Query head i reads kv head i // (H / K). Queries in segment 0 see nothing that matters: their output is finite.
    """
    B, T, H, h = q_BTHh.shape
    K, C = values_BKCh.shape[1:3]
    matmul = functools.partial(jnp.matmul, precision=EXACT, preferred_element_type=jnp.float32)

    def block(q: Array, places: Array, segments: Array | None) -> Array:
        allowed = jnp.arange(C) <= places[:, :, None]
        if segments is not None:
            allowed &= (key_segments_BC[:, None, :] == segments[:, :, None]) & (segments[:, :, None] > 0)
        # The queries of all heads that read one kv head are the rows of one matrix.
        q = q.reshape(B, -1, K, H // K, h).transpose(0, 2, 3, 1, 4).reshape(B, K, -1, h)
        scores = matmul(q, keys_BKhC).reshape(B, K, H // K, -1, C) * h**-0.5
        # A finite floor keeps rows in which nothing is allowed, and their gradients, finite.
        weights = jax.nn.softmax(jnp.where(allowed[:, None, None], scores, -1e30), axis=-1)
        out = matmul(weights.astype(q.dtype).reshape(B, K, -1, C), values_BKCh).astype(q.dtype)
        return out.reshape(B, K, H // K, -1, h).transpose(0, 3, 1, 2, 4).reshape(B, -1, H, h)

    if T <= QUERY_BLOCK:
        return block(q_BTHh, places_BT, segments_BT)
    extra = -T % QUERY_BLOCK

    def blocks(a: Array | None) -> Array | None:
        if a is None:
            return None
        a = jnp.pad(a, [(0, 0), (0, extra)] + [(0, 0)] * (a.ndim - 2))
        return a.reshape(B, -1, QUERY_BLOCK, *a.shape[2:]).swapaxes(0, 1)

    out = jax.lax.map(
        jax.checkpoint(lambda args: block(*args)), (blocks(q_BTHh), blocks(places_BT), blocks(segments_BT))
    )
    return out.swapaxes(0, 1).reshape(B, T + extra, H, h)[:, :T]


class Attention(nnx.Module):
    """q_proj (D, H h), k_proj and v_proj (D, K h), o_proj (H h, D); biases and q/k norms (h) where configured."""

    def __init__(self, config: ModelConfig, key: Array) -> None:
        self.config = config
        D, Q, KV = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
        q, k, v, o = jax.random.split(key, 4)
        std = config.initializer_range
        self.q_proj = normal(q, (D, Q), ("embed", "heads"), std=std)
        self.k_proj = normal(k, (D, KV), ("embed", "kv_heads"), std=std)
        self.v_proj = normal(v, (D, KV), ("embed", "kv_heads"), std=std)
        self.o_proj = normal(o, (Q, D), ("heads", "embed"), std=std)
        bias, norm = config.attention_bias, config.qk_norm
        self.q_bias = constant(0.0, (Q,), ("heads",)) if bias else None
        self.k_bias = constant(0.0, (KV,), ("kv_heads",)) if bias else None
        self.v_bias = constant(0.0, (KV,), ("kv_heads",)) if bias else None
        self.o_bias = constant(0.0, (D,), ("embed",)) if bias else None
        self.q_norm = constant(1.0, (config.head_dim,), (None,)) if norm else None
        self.k_norm = constant(1.0, (config.head_dim,), (None,)) if norm else None

    def __call__(
        self, x: Float[Array, "B T D"], segments: Int[Array, "B T"], positions: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Over packed rows; positions restart in each segment."""
        q, k, v = self._project(x, positions)
        if axes.size("context") > 1:
            return self._output(ring_attention(q, k, v, segments))
        if x.shape[1] > QUERY_BLOCK or target().platform != "cpu" or preferred("attention"):
            return self._output(attention(q, k, v, query_segments_BT=segments, key_segments_BS=segments))
        places = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        keys, values = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
        return self._output(attend(q, keys, values, places_BT=places, segments_BT=segments, key_segments_BC=segments))

    def extend(
        self, x: Float[Array, "B T D"], live: Array, lengths: Int[Array, " B"], cache: KeyValue
    ) -> tuple[Float[Array, "B T D"], KeyValue]:
        """T more tokens after the lengths[b] in the cache; tokens that are not live leave no trace in it."""
        B, T, _ = x.shape
        places = lengths[:, None] + jnp.arange(T)
        q, k, v = self._project(x, places)
        capacity = cache.values.shape[2]
        rows, columns = jnp.arange(B)[:, None], jnp.where(live, places, capacity)  # out of bounds: dropped
        dtype = cache.values.dtype
        keys = cache.keys.at[rows, :, :, columns].set(k.astype(dtype), mode="drop")
        values = cache.values.at[rows, :, columns].set(v.astype(dtype), mode="drop")
        out = attend(q, keys.astype(q.dtype), values.astype(q.dtype), places_BT=places)
        return self._output(out), KeyValue(keys, values)

    def _project(self, x: Array, positions: Array) -> tuple[Array, Array, Array]:
        c = self.config

        def heads(y: Array, bias: nnx.Param | None, norm: nnx.Param | None, *, turn: bool) -> Array:
            if bias is not None:
                y = y + bias[...].astype(y.dtype)
            y = y.reshape(*x.shape[:2], -1, c.head_dim)
            if norm is not None:
                y = rms_norm(y, norm[...], eps=c.norm_eps)
            return rotate(y, positions, c.rope_theta) if turn and c.rope_theta is not None else y

        q, k, v = project_each(x, (self.q_proj, self.k_proj, self.v_proj))
        q = heads(q, self.q_bias, self.q_norm, turn=True)
        k = heads(k, self.k_bias, self.k_norm, turn=True)
        return q, k, heads(v, self.v_bias, None, turn=False)

    def _output(self, out: Array) -> Array:
        y = axes.total(project(out.reshape(*out.shape[:2], -1), self.o_proj[...]), "tensor")
        return y if self.o_bias is None else y + self.o_bias[...].astype(y.dtype)
