"""The recurrence of the state-space model, one token after the other; in float64 where it is given float64."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def forward(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    segments_BT: Int[Array, "B T"],
    before_B: Int[Array, " B"],
    initial_BHPN: Float[Array, "B H P N"],
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"]]:
    """S_t = exp(dt A) S_(t-1) + dt x B^T and y = S C, with S_(t-1) = 0 where a segment begins."""
    dtype = jnp.promote_types(x_BTHP.dtype, jnp.float32)
    ratio = x_BTHP.shape[2] // B_BTGN.shape[2]
    x, dt, B, C = (jnp.moveaxis(a.astype(dtype), 1, 0) for a in (x_BTHP, dt_BTH, B_BTGN, C_BTGN))
    B, C = jnp.repeat(B, ratio, axis=2), jnp.repeat(C, ratio, axis=2)
    continues = segments_BT == jnp.concatenate([before_B[:, None], segments_BT[:, :-1]], axis=1)

    def step(state: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        x, dt, B, C, continues = token
        kept = jnp.where(continues[:, None], jnp.exp(dt * A_H), 0.0)
        state = kept[..., None, None] * state + (dt[..., None] * x)[..., None] * B[:, :, None, :]
        return state, (state * C[:, :, None, :]).sum(-1)

    state, y = jax.lax.scan(step, initial_BHPN.astype(dtype), (x, dt, B, C, continues.T))
    return jnp.moveaxis(y, 0, 1).astype(x_BTHP.dtype), state
