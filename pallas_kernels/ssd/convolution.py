"""The short causal convolution of Mamba, which keeps to documents. XLA fuses each pass into one read of the row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def causal_conv(
    x_BTC: Float[Array, "B T C"],
    weight_KC: Float[Array, "K C"],
    bias_C: Float[Array, " C"],
    segments_BT: Int[Array, "B T"],
    *,
    history_BWC: Float[Array, "B W C"] | None = None,
    history_segments_BW: Int[Array, "B W"] | None = None,
) -> Float[Array, "B T C"]:
    """silu(bias + sum over j of weight[j] x[t - W + j]) with W = K - 1, in x's dtype; sums are float32.

    Only tokens of the segment of t count. The history is what stands before the row, by default nothing; its segments
    default to that of the row's first token, so that it is the document's own past. The backward pass computes the
    sum again: nothing but x is kept. ValueError if the history is not W long.
    """
    W = weight_KC.shape[0] - 1
    batch, _, channels = x_BTC.shape
    if history_BWC is None:
        history_BWC = jnp.zeros((batch, W, channels), x_BTC.dtype)
    if history_BWC.shape[1] != W:
        raise ValueError(
            f"causal_conv: a weight of {W + 1} taps takes {W} tokens of history, not {history_BWC.shape[1]}"
        )
    if history_segments_BW is None:
        history_segments_BW = jnp.broadcast_to(segments_BT[:, :1], (batch, W))
    padded = jnp.concatenate([history_BWC.astype(x_BTC.dtype), x_BTC], axis=1)
    segments = jnp.concatenate([history_segments_BW, segments_BT], axis=1)
    return _conv(padded, weight_KC, bias_C, segments)


def _taps(padded: Array, segments: Array, W: int) -> list[Array]:
    """For each tap what it sees, (B, T, C) float32: zero in another segment."""
    T = padded.shape[1] - W
    own = segments[:, W:]
    return [
        jnp.where((segments[:, j : j + T] == own)[..., None], padded[:, j : j + T].astype(jnp.float32), 0.0)
        for j in range(W + 1)
    ]


def _total(padded: Array, weight: Array, bias: Array, segments: Array) -> Array:
    taps = _taps(padded, segments, weight.shape[0] - 1)
    return sum((w * tap for w, tap in zip(weight.astype(jnp.float32), taps, strict=True)), bias.astype(jnp.float32))


@jax.custom_vjp
def _conv(padded: Array, weight: Array, bias: Array, segments: Array) -> Array:
    return jax.nn.silu(_total(padded, weight, bias, segments)).astype(padded.dtype)


def _forward(padded: Array, weight: Array, bias: Array, segments: Array) -> tuple[Array, tuple[Array, ...]]:
    return _conv(padded, weight, bias, segments), (padded, weight, bias, segments)


def _backward(saved: tuple[Array, ...], d_y: Array) -> tuple[Array, Array, Array, None]:
    padded, weight, bias, segments = saved
    W = weight.shape[0] - 1
    total = _total(padded, weight, bias, segments)
    gate = jax.nn.sigmoid(total)
    d_total = d_y.astype(jnp.float32) * gate * (1 + total * (1 - gate))
    d_weight = jnp.stack([(tap * d_total).sum((0, 1)) for tap in _taps(padded, segments, W)])
    # Token i is tap j of token i + W - j, where that exists and is of the same segment.
    length = padded.shape[1]
    later = jnp.pad(d_total, [(0, 0), (W, W), (0, 0)])
    later_segments = jnp.pad(segments, [(0, 0), (0, W)], constant_values=-1)
    d_padded = jnp.zeros(padded.shape, jnp.float32)
    for j, w in enumerate(weight.astype(jnp.float32)):
        ahead = slice(W - j, W - j + length)
        same = (later_segments[:, ahead] == segments)[..., None]
        d_padded = d_padded + jnp.where(same, w * later[:, ahead], 0.0)
    return d_padded.astype(padded.dtype), d_weight.astype(weight.dtype), d_total.sum((0, 1)).astype(bias.dtype), None


_conv.defvjp(_forward, _backward)
