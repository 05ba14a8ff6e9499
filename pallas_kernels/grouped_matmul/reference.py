"""The definition, as plain jnp: every row is multiplied with every matrix and one product is kept. Slow and obvious."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.plan import Plan


def forward(
    x_MK: Float[Array, "M K"],
    weight: Float[Array, "G K N"],
    plan: Plan,
    *,
    transposed: bool,
    activation: str | None,
    row_weight_M: Float[Array, " M"] | None,
) -> Float[Array, "M N"]:
    exact = jnp.promote_types(x_MK.dtype, jnp.float32)
    x, w = x_MK.astype(exact), weight.astype(exact)
    products = jnp.einsum("mk,gnk->mgn" if transposed else "mk,gkn->mgn", x, w, precision="highest")
    y = jnp.where(_members(plan, exact)[..., None] > 0, products, 0).sum(1)
    if activation == "relu2":
        y = jnp.square(jax.nn.relu(y))
    if row_weight_M is not None:
        y = y * row_weight_M[:, None].astype(exact)
    return y.astype(x_MK.dtype)


def weight_gradient(
    x_MK: Float[Array, "M K"], dy_MN: Float[Array, "M N"], plan: Plan, dtype: jnp.dtype
) -> Float[Array, "G K N"]:
    exact = jnp.promote_types(x_MK.dtype, jnp.float32)
    members = _members(plan, exact)
    x, dy = x_MK.astype(exact), dy_MN.astype(exact)
    return jnp.einsum("mg,mk,mn->gkn", members, x, dy, precision="highest").astype(dtype)


def _members(plan: Plan, dtype: jnp.dtype) -> Float[Array, "M G"]:
    row = jnp.arange(plan.rows)[:, None]
    return ((row >= plan.begin_S[:-1]) & (row < plan.end_S[:-1])).astype(dtype)
