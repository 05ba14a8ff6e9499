"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): the chunked SSD form for rows, the recurrence for one token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model.cache import MambaState
from cascade_jax.model.linear import constant, normal, project
from cascade_jax.model.norm import gated_group_norm

EXACT = jax.lax.Precision.HIGHEST


def segment_sums(a: Float[Array, "... Q"]) -> Float[Array, "... Q Q"]:
    """[l, s] = the sum of a over s < i <= l. Sums of just these terms keep decays exact where a prefix is large.

    A difference of two prefix sums would lose up to 1e-3 of a decay in float32, and mix in other segments.
    """
    upto = jnp.tril(jnp.ones((a.shape[-1],) * 2, a.dtype))  # [l, i]: i <= l
    after = jnp.tril(upto, -1) > 0  # [i, s]: i > s
    return jnp.matmul(upto, jnp.where(after, a[..., None], 0.0), precision=EXACT)


class Chunks(NamedTuple):
    """What the Z chunks of a row give before their states are joined; R heads a group, Q tokens a chunk."""

    inside: Float[Array, "B Z G R Q P"]  # y as far as it comes from the chunk itself
    added: Float[Array, "B Z G R P N"]  # the state after the chunk if there was none before
    kept: Float[Array, "B Z G R Q"]  # how much of the state before the chunk is left at each token
    C: Float[Array, "B Z G Q N"]


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
    """All pairs of tokens inside a chunk at once. before_B: the segment of the token before the row."""
    batch, T, H, _ = x_BTHP.shape
    G = B_BTGN.shape[2]
    Q = min(chunk, -(-T // 8) * 8)
    extra = -T % Q

    def chunks(m: Array, *heads: int) -> Array:
        """(B, T, heads, ...) -> (B, chunks, *heads, Q, ...)"""
        m = jnp.pad(m, [(0, 0), (0, extra)] + [(0, 0)] * (m.ndim - 2))
        return jnp.moveaxis(m.reshape(batch, -1, Q, *heads, *m.shape[3:]), 2, 2 + len(heads))

    X, a = chunks(x_BTHP * dt_BTH[..., None], G, H // G), chunks(dt_BTH * A_H, G, H // G)
    Bs, Cs = chunks(B_BTGN, G), chunks(C_BTGN, G)
    seg = jnp.pad(segments_BT, [(0, 0), (0, extra)], mode="edge").reshape(batch, -1, Q)
    before = jnp.concatenate([before_B[:, None], seg[:, :-1, -1]], axis=1)  # the segment that the carried state is of

    same = jnp.tril(jnp.ones((Q, Q), bool)) & (seg[..., :, None] == seg[..., None, :])
    # -inf before exp, never 0 after it: above the diagonal exp may overflow, and its gradient would be NaN.
    sums = segment_sums(a)
    decay = jnp.exp(jnp.where(same[:, :, None, None], sums, -jnp.inf))
    CB = jnp.matmul(Cs, Bs.swapaxes(-1, -2), precision=EXACT)
    inside = jnp.matmul(CB[:, :, :, None] * decay, X, precision=EXACT)

    added = jnp.einsum("bzgrsp,bzgsn->bzgrpn", X * decay[..., -1, :, None], Bs, precision=EXACT)
    from_start = a[..., :1] + sums[..., 0]
    kept = jnp.where((seg == before[..., None])[:, :, None, None], jnp.exp(from_start), 0.0)
    return Chunks(inside, added, kept, Cs)


def ssd_states(
    chunks: Chunks, state_BGRPN: Float[Array, "B G R P N"]
) -> tuple[Float[Array, "Z B G R P N"], Float[Array, "B G R P N"]]:
    """The states before each chunk and after the last, by the recurrence from the given one."""

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        kept, added = now
        return kept[..., None, None] * state + added, state

    per_chunk = (jnp.moveaxis(chunks.kept[..., -1], 1, 0), jnp.moveaxis(chunks.added, 1, 0))
    state, starts = jax.lax.scan(step, state_BGRPN, per_chunk)
    return starts, state


def ssd_output(chunks: Chunks, starts_ZBGRPN: Float[Array, "Z B G R P N"], tokens: int) -> Float[Array, "B tokens H P"]:
    """y from inside the chunks and from the states before them."""
    carried = jnp.einsum("bzgln,zbgrpn->bzgrlp", chunks.C, starts_ZBGRPN, precision=EXACT)
    y = jnp.moveaxis(chunks.inside + chunks.kept[..., None] * carried, 4, 2)
    batch, Z, Q, G, R, P = y.shape
    return y.reshape(batch, Z * Q, G * R, P)[:, :tokens]


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
    starts, state = ssd_states(chunks, state.reshape(batch, G, H // G, P, N))
    return ssd_output(chunks, starts, T), state.reshape(batch, H, P, N)


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


class Mamba(nnx.Module):
    """in_proj in parts z, x (D, H P), B, C (D, G N), dt (D, H); conv over x|B|C; gated norm; out_proj (H P, D)."""

    def __init__(self, config: ModelConfig, key: Array) -> None:
        self.config = config
        D, inner, H = config.width, config.mamba_width, config.mamba_heads
        GN, std = config.mamba_groups * config.state, config.initializer_range
        z, x, b, c, dt, conv, a_log, dt_bias, out = jax.random.split(key, 9)
        self.z_proj = normal(z, (D, inner), ("embed", "heads"), std=std)
        self.x_proj = normal(x, (D, inner), ("embed", "heads"), std=std)
        self.B_proj = normal(b, (D, GN), ("embed", "heads"), std=std)
        self.C_proj = normal(c, (D, GN), ("embed", "heads"), std=std)
        self.dt_proj = normal(dt, (D, H), ("embed", "heads"), std=std)
        self.conv_weight = normal(conv, (config.conv_kernel, inner + 2 * GN), (None, None), std=std)
        self.conv_bias = constant(0.0, (inner + 2 * GN,), (None,))
        self.A_log = nnx.Param(jnp.log(jax.random.uniform(a_log, (H,), minval=1.0, maxval=16.0)), axes=("heads",))
        self.D = constant(1.0, (H,), ("heads",))
        start = jnp.exp(jax.random.uniform(dt_bias, (H,), minval=jnp.log(1e-3), maxval=jnp.log(1e-1)))
        self.dt_bias = nnx.Param(start + jnp.log(-jnp.expm1(-start)), axes=("heads",))  # softplus gives start
        self.norm = constant(1.0, (inner,), ("heads",))
        bound = (inner * len(config.pattern)) ** -0.5  # rescaled for the depth of the residual stream
        out_weight = jax.random.uniform(out, (inner, D), minval=-bound, maxval=bound)
        self.out_proj = nnx.Param(out_weight, axes=("heads", "embed"))

    def __call__(self, x: Float[Array, "B T D"], segments: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Over packed rows: convolution and state start from nothing in every segment."""
        live = segments > 0
        z, raw, dt = self._project(x, live)
        history = jnp.zeros((x.shape[0], self.config.conv_kernel - 1, raw.shape[-1]), raw.dtype)
        v = causal_conv(history, raw, self.conv_weight[...], self.conv_bias[...], segments)
        inputs, B, C = self._split(v, live)
        y, _ = ssd(inputs, dt, self._A(), B, C, segments, chunk=self.config.chunk)
        return self._output(y, inputs, z, x.dtype)

    def extend(
        self, x: Float[Array, "B T D"], live: Bool[Array, "B T"], lengths: Int[Array, " B"], cache: MambaState
    ) -> tuple[Float[Array, "B T D"], MambaState]:
        """T more tokens on top of the cached states; tokens that are not live leave no trace in them."""
        z, raw, dt = self._project(x, live)
        v = causal_conv(cache.conv, raw, self.conv_weight[...], self.conv_bias[...], None)
        inputs, B, C = self._split(v, live)
        window = jnp.concatenate([cache.conv, raw.astype(cache.conv.dtype)], axis=1)
        last = live.sum(1)[:, None] + jnp.arange(cache.conv.shape[1])
        conv = jnp.take_along_axis(window, last[..., None], axis=1)
        if x.shape[1] == 1:
            y, ssm = self._one_token(inputs, dt, B, C, cache.ssm)
        else:
            segments = jnp.ones_like(live, jnp.int32)
            y, ssm = ssd(inputs, dt, self._A(), B, C, segments, chunk=self.config.chunk, state_BHPN=cache.ssm)
        return self._output(y, inputs, z, x.dtype), MambaState(conv, ssm)

    def _one_token(self, x: Array, dt: Array, B: Array, C: Array, state: Array) -> tuple[Array, Array]:
        heads_per_group = self.config.mamba_heads // self.config.mamba_groups
        B, C = (jnp.repeat(m[:, 0], heads_per_group, axis=1)[:, :, None, :] for m in (B, C))
        dt, x = dt[:, 0, :, None, None], x[:, 0, :, :, None]
        state = jnp.exp(dt * self._A()[:, None, None]) * state + dt * x * B
        return (state * C).sum(-1)[:, None], state

    def _A(self) -> Array:
        return -jnp.exp(self.A_log[...].astype(jnp.float32))

    def _project(self, x: Array, live: Array) -> tuple[Array, Array, Array]:
        """z, the raw convolution input and dt; zeros where not live, so that pads change no state."""
        x = jnp.where(live[..., None], x, 0)
        raw = jnp.concatenate([project(x, w[...]) for w in (self.x_proj, self.B_proj, self.C_proj)], axis=-1)
        dt = jax.nn.softplus(project(x, self.dt_proj[...]).astype(jnp.float32) + self.dt_bias[...].astype(jnp.float32))
        if self.config.time_step_limit is not None:
            dt = jnp.clip(dt, *self.config.time_step_limit)
        return project(x, self.z_proj[...]), raw, jnp.where(live[..., None], dt, 0.0)

    def _split(self, v: Array, live: Array) -> tuple[Array, Array, Array]:
        """x (B, T, H, P), B and C (B, T, G, N). The convolution has a bias: pads are zeroed once more."""
        c = self.config
        v = jnp.where(live[..., None], v, 0.0)
        x, B, C = jnp.split(v, [c.mamba_width, c.mamba_width + c.mamba_groups * c.state], axis=-1)
        shape = (*v.shape[:2], c.mamba_groups, c.state)
        return x.reshape(*v.shape[:2], c.mamba_heads, c.mamba_head_dim), B.reshape(shape), C.reshape(shape)

    def _output(self, y: Array, x: Array, z: Array, dtype: jnp.dtype) -> Array:
        c = self.config
        y = y + self.D[...].astype(jnp.float32)[:, None] * x
        y = y.reshape(*y.shape[:2], -1)
        y = gated_group_norm(y, z, self.norm[...], groups=c.mamba_groups, eps=c.norm_eps)
        return project(y.astype(dtype), self.out_proj[...])
