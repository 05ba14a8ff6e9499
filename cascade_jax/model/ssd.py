"""Mamba-2 without its weights (Dao and Gu 2024, arXiv 2405.21060): the chunked SSD and the short convolution."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.model.linear import EXACT


def products(equation: str, *factors: Float[Array, "..."], dtype: jnp.dtype) -> Float[Array, "..."]:
    """einsum of factors in that dtype, which the rows came in; float32 accumulation and float32 out."""
    factors = [factor.astype(dtype) for factor in factors]
    return jnp.einsum(equation, *factors, precision=EXACT, preferred_element_type=jnp.float32)


def segment_sums(a: Float[Array, "... Q"]) -> Float[Array, "... Q Q"]:
    """[l, s] = the sum of a over s < i <= l. Sums of just these terms keep decays exact where a prefix is large.

    A difference of two prefix sums would lose up to 1e-3 of a decay in float32, and mix in other segments.
    """
    upto = jnp.tril(jnp.ones((a.shape[-1],) * 2, a.dtype))  # [l, i]: i <= l
    after = jnp.tril(upto, -1) > 0  # [i, s]: i > s
    return jnp.matmul(upto, jnp.where(after, a[..., None], 0.0), precision=EXACT)


class Chunks(NamedTuple):
    """What the Z chunks of a row give before their states are joined; R heads a group, Q tokens a chunk."""

    inside: Float[Array, "B G R Z Q P"]  # y as far as it comes from the chunk itself
    added: Float[Array, "B G R Z P N"]  # the state after the chunk if there was none before
    kept: Float[Array, "B G R Z Q"]  # how much of the state before the chunk is left at each token
    C: Float[Array, "B G Z Q N"]


class States(NamedTuple):
    """A state, and how much of the one before the row is in it."""

    state: Float[Array, "*Z B G R P N"]
    left: Float[Array, "*Z B G R"]


def ssd_chunks(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    *,
    chunk: int,
    before_B: Int[Array, " B"],
) -> Chunks:
    """All pairs of tokens inside a chunk at once, float32. before_B: the segment of the token before the row.

    Matrices are multiplied in the dtype of x, B and C; decays are float32.
    """
    batch, T, H, _ = x_BTHP.shape
    dtype = x_BTHP.dtype
    G = B_BTGN.shape[2]
    Q = min(chunk, -(-T // 8) * 8)
    extra = -T % Q

    def chunks(m: Array, *heads: int) -> Array:
        """(B, T, heads, ...) -> (B, *heads, chunks, Q, ...): tokens move past heads before they are split."""
        m = jnp.moveaxis(jnp.pad(m, [(0, 0), (0, extra)] + [(0, 0)] * (m.ndim - 2)), 1, 2)
        return m.reshape(batch, *heads, -1, Q, *m.shape[3:])

    X, a = chunks(x_BTHP * dt_BTH[..., None], G, H // G), chunks(dt_BTH * A_H, G, H // G)
    Bs, Cs = chunks(B_BTGN, G), chunks(C_BTGN, G)
    seg = jnp.pad(segments_BT, [(0, 0), (0, extra)], mode="edge").reshape(batch, -1, Q)
    before = jnp.concatenate([before_B[:, None], seg[:, :-1, -1]], axis=1)  # the segment that the carried state is of

    same = jnp.tril(jnp.ones((Q, Q), bool)) & (seg[..., :, None] == seg[..., None, :])
    # -inf before exp, never 0 after it: above the diagonal exp may overflow, and its gradient would be NaN.
    sums = segment_sums(a)
    decay = jnp.exp(jnp.where(same[:, None, None], sums, -jnp.inf))
    CB = products("bgzln,bgzsn->bgzls", Cs, Bs, dtype=dtype)
    inside = products("bgrzls,bgrzsp->bgrzlp", CB[:, :, None] * decay, X, dtype=dtype)
    added = products("bgrzsp,bgzsn->bgrzpn", X * decay[..., -1, :, None], Bs, dtype=dtype)
    from_start = a[..., :1] + sums[..., 0]
    kept = jnp.where((seg == before[..., None])[:, None, None], jnp.exp(from_start), 0.0)
    return Chunks(inside, added, kept, Cs)


def ssd_states(chunks: Chunks, state_BGRPN: Float[Array, "B G R P N"]) -> tuple[States, States]:
    """By the recurrence from the given state: before each chunk (Z, ...), and after the last."""

    def step(now: States, chunk: tuple[Array, Array]) -> tuple[States, States]:
        kept, added = chunk
        return States(kept[..., None, None] * now.state + added, kept * now.left), now

    per_chunk = (jnp.moveaxis(chunks.kept[..., -1], 3, 0), jnp.moveaxis(chunks.added, 3, 0))
    after, before = jax.lax.scan(step, States(state_BGRPN, jnp.ones_like(chunks.kept[..., 0, 0])), per_chunk)
    return before, after


def ssd_output(chunks: Chunks, starts_ZBGRPN: Float[Array, "Z B G R P N"], tokens: int) -> Float[Array, "B tokens H P"]:
    """y from inside the chunks and from the states before them."""
    carried = products("bgzln,zbgrpn->bgrzlp", chunks.C, starts_ZBGRPN, dtype=chunks.C.dtype)
    y = chunks.inside + chunks.kept[..., None] * carried
    batch, G, R, Z, Q, P = y.shape
    return jnp.moveaxis(y.reshape(batch, G * R, Z * Q, P), 1, 2)[:, :tokens]


def ssd(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    *,
    chunk: int,
    state_BHPN: Float[Array, "B H P N"] | None = None,
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"]]:
    """S_t = exp(dt A) S_(t-1) + dt x B^T, y = S C, with S = 0 before each segment; y and the last S, float32.

    A given state belongs to the first segment. dt = 0 leaves the state as it was. Head h reads group h // (H / G).
    Inside a chunk all pairs of positions at once, from chunk to chunk the recurrence.
    """
    batch, T, H, P = x_BTHP.shape
    G, N = B_BTGN.shape[2:]
    chunks = ssd_chunks(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, segments_BT, chunk=chunk, before_B=segments_BT[:, 0])
    state = jnp.zeros((batch, H, P, N), jnp.float32) if state_BHPN is None else state_BHPN
    before, after = ssd_states(chunks, state.reshape(batch, G, H // G, P, N))
    return ssd_output(chunks, before.state, T), after.state.reshape(batch, H, P, N)


def causal_conv(
    history_BWC: Float[Array, "B W C"],
    x_BTC: Float[Array, "B T C"],
    weight_KC: Float[Array, "K C"],
    bias_C: Float[Array, " C"],
    segments_BT: Int[Array, "B T"] | None,
    history_segments_BW: Int[Array, "B W"] | None = None,
) -> Float[Array, "B T C"]:
    """silu(depthwise convolution + bias) in float32; taps reach back to the history, never into another segment.

    Where segments are given, a history without them is padding.
    """
    T, W = x_BTC.shape[1], history_BWC.shape[1]
    padded = jnp.concatenate([history_BWC.astype(x_BTC.dtype), x_BTC], axis=1).astype(jnp.float32)
    seg = None
    if history_segments_BW is not None:
        seg = jnp.concatenate([history_segments_BW, segments_BT], axis=1)
    elif segments_BT is not None:
        seg = jnp.pad(segments_BT, [(0, 0), (W, 0)])
    total = bias_C.astype(jnp.float32)
    for j in range(W + 1):
        tap = padded[:, j : j + T] * weight_KC[j].astype(jnp.float32)
        if seg is not None and j < W:
            tap = jnp.where((seg[:, j : j + T] == segments_BT)[..., None], tap, 0.0)
        total = total + tap
    return jax.nn.silu(total)
