"""The chunked scan in plain jnp: the default on a CPU."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.product import product
from pallas_kernels.ssd.rows import Rows


def forward(
    rows: Rows, initial_BHPN: Float[Array, "B H P N"], chunk: int
) -> tuple[Float[Array, "B T H P"], Float[Array, "B H P N"]]:
    """All pairs of tokens inside a chunk at once, from chunk to chunk the recurrence. R heads read one group."""
    batch, T, H, P = rows.x.shape
    G, N = rows.B.shape[2:]
    shape = (batch, G, H // G)
    dtype = rows.x.dtype

    def chunks(a: Array, *heads: int) -> Array:
        """(B, T, heads, ...) -> (chunks, B, *heads, Q, ...)."""
        a = a.reshape(batch, -1, chunk, *heads, *a.shape[3:])
        return jnp.moveaxis(jnp.moveaxis(a, 1, 0), 2, 2 + len(heads))

    segments = rows.segments.reshape(batch, -1, chunk).swapaxes(0, 1)
    before = jnp.concatenate([rows.before[None], segments[:-1, :, -1]])
    inputs = (
        chunks(rows.x, G, H // G),
        *(chunks(a, G, H // G) for a in (rows.dt, *(part.swapaxes(1, 2) for part in rows.prefix))),
        chunks(rows.B, G),
        chunks(rows.C, G),
        segments,
        before,
    )
    lower = jnp.tril(jnp.ones((chunk, chunk), bool))
    diagonal = jnp.eye(chunk, dtype=bool)

    @jax.checkpoint  # the backward pass computes a chunk again instead of keeping its pairs
    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        x, dt, coarse, fine, B, C, segment, before = inputs
        same = lower & (segment[:, :, None] == segment[:, None, :])
        sums = (coarse[..., :, None] - coarse[..., None, :]) + (fine[..., :, None] - fine[..., None, :])
        # A token's own decay is 1 whatever a is: left in, its gradient would cancel only up to rounding.
        sums = jnp.where(diagonal, 0.0, sums)
        # -inf before exp2, never 0 after it: above the diagonal exp2 may overflow, and its gradient would be NaN.
        decay = jnp.exp2(jnp.where(same[:, None, None], sums, -jnp.inf))
        weights = product("bgln,bgsn->bgls", C, B)[:, :, None] * decay
        X = x * dt[..., None]
        kept = jnp.where((segment == before[:, None])[:, None, None], jnp.exp2(coarse + fine), 0.0)
        y = product("bgrls,bgrsp->bgrlp", weights.astype(dtype), X.astype(dtype))
        y = y + kept[..., None] * product("bgln,bgrpn->bgrlp", C, state.astype(dtype))
        added = product("bgrsp,bgsn->bgrpn", (X * decay[..., -1, :, None]).astype(dtype), B)
        return kept[..., -1, None, None] * state + added, y.astype(dtype)

    state, y = jax.lax.scan(step, initial_BHPN.reshape(*shape, P, N), inputs)
    y = jnp.moveaxis(jnp.moveaxis(y, 4, 2), 0, 1).reshape(batch, T, H, P)
    return y, state.reshape(batch, H, P, N)
