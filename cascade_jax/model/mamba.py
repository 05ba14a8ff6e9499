"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): the chunked SSD form for rows, the recurrence for one token."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import axes
from cascade_jax.model.cache import MambaState
from cascade_jax.model.context import conv_halo, ssd_parallel
from cascade_jax.model.linear import constant, normal, project, project_each
from cascade_jax.model.norm import gated_group_norm
from pallas_kernels.ssd import causal_conv, ssd


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
        split, history = axes.size("context") > 1, {}
        if split:
            before, segments_before = conv_halo(raw, segments, self.config.conv_kernel - 1)
            history = {"history_BWC": before, "history_segments_BW": segments_before}
        inputs, B, C = self._split(causal_conv(raw, *self._conv(), segments, **history), live)
        y, *_ = (ssd_parallel if split else ssd)(inputs, dt, self._A(), B, C, segments, chunk=self.config.chunk)
        return self._output(y, inputs, z, x.dtype)

    def extend(
        self, x: Float[Array, "B T D"], live: Bool[Array, "B T"], lengths: Int[Array, " B"], cache: MambaState
    ) -> tuple[Float[Array, "B T D"], MambaState]:
        """T more tokens on top of the cached states; tokens that are not live leave no trace in them."""
        z, raw, dt = self._project(x, live)
        segments = jnp.ones_like(live, jnp.int32)
        inputs, B, C = self._split(causal_conv(raw, *self._conv(), segments, history_BWC=cache.conv), live)
        window = jnp.concatenate([cache.conv, raw.astype(cache.conv.dtype)], axis=1)
        last = live.sum(1)[:, None] + jnp.arange(cache.conv.shape[1])
        conv = jnp.take_along_axis(window, last[..., None], axis=1)
        if x.shape[1] == 1:
            y, ssm = self._one_token(inputs, dt, B, C, cache.ssm)
        else:
            chunk = self.config.chunk
            y, ssm, _ = ssd(inputs, dt, self._A(), B, C, segments, chunk=chunk, initial_state=cache.ssm)
        return self._output(y, inputs, z, x.dtype), MambaState(conv, ssm)

    def _one_token(self, x: Array, dt: Array, B: Array, C: Array, state: Array) -> tuple[Array, Array]:
        heads_per_group = self.config.mamba_heads // self.config.mamba_groups
        B, C = (jnp.repeat(m[:, 0], heads_per_group, axis=1)[:, :, None, :] for m in (B, C))
        dt, x = dt[:, 0, :, None, None], x[:, 0, :, :, None]
        state = jnp.exp(dt * self._A()[:, None, None]) * state + dt * x * B
        return (state * C).sum(-1)[:, None], state

    def _conv(self) -> tuple[Array, Array]:
        """Weight and bias of the channels x|B|C that are here: devices that share the heads share each of the three."""
        weight, bias = self.conv_weight[...], self.conv_bias[...]
        shares = axes.size("tensor")
        if shares == 1:
            return weight, bias
        c, start, parts = self.config, 0, []
        for width in (c.mamba_width, c.mamba_groups * c.state, c.mamba_groups * c.state):
            parts.append(start + axes.index("tensor") * width + jnp.arange(width))
            start += shares * width
        here = jnp.concatenate(parts)
        return weight[:, here], bias[here]

    def _A(self) -> Array:
        return -jnp.exp(self.A_log[...].astype(jnp.float32))

    def _project(self, x: Array, live: Array) -> tuple[Array, Array, Array]:
        """z, the raw convolution input and dt; zeros where not live, so that pads change no state."""
        x = jnp.where(live[..., None], x, 0)
        z, *raw, dt = project_each(x, (self.z_proj, self.x_proj, self.B_proj, self.C_proj, self.dt_proj))
        dt = jax.nn.softplus(dt.astype(jnp.float32) + self.dt_bias[...].astype(jnp.float32))
        if self.config.time_step_limit is not None:
            dt = jnp.clip(dt, *self.config.time_step_limit)
        return z, jnp.concatenate(raw, axis=-1), jnp.where(live[..., None], dt, 0.0)

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
        return axes.total(project(y.astype(dtype), self.out_proj[...]), "tensor")
