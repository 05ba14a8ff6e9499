"""The portable version: a scan over groups, and over each group's row tiles a loop that ends where its rows end.

No more work than there are rows, and every matrix is read once. On a CPU lax.ragged_dot does the work of all groups
for every row.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.plan import Plan


def row_tile(rows: int, groups: int) -> int:
    """Rows of one group that are multiplied at a time: a quarter of an even share; little of the last is waste."""
    return min(64, max(8, (1 << (rows // groups).bit_length()) // 8))


def forward(
    x_MK: Float[Array, "M K"],
    weight: Float[Array, "G K N"],
    plan: Plan,
    *,
    transposed: bool,
    activation: str | None,
    row_weight_M: Float[Array, " M"] | None,
) -> Float[Array, "M N"]:
    """Row i times its group's matrix, or times its transpose; zeros behind the groups' rows."""
    tile = row_tile(plan.rows, plan.groups)
    x = jnp.pad(x_MK, ((0, tile), (0, 0)))
    contracted = ((1,), (1 if transposed else 0,))

    def group(y: Array, of: tuple[Array, Array, Array]) -> tuple[Array, None]:
        matrix, begin, end = of

        def multiply(i: Array, y: Array) -> Array:
            row = begin + i * tile
            rows = lax.dynamic_slice_in_dim(x, row, tile)
            product = lax.dot_general(
                rows, matrix, (contracted, ((), ())), precision="highest", preferred_element_type=jnp.float32
            )
            if activation == "relu2":
                product = jnp.square(jax.nn.relu(product))
            # Rows of the next group are overwritten by their own product, which comes later.
            return lax.dynamic_update_slice_in_dim(y, product.astype(y.dtype), row, 0)

        return lax.fori_loop(0, -(-(end - begin) // tile), multiply, y), None

    nothing = jnp.zeros((plan.rows + tile, weight.shape[1 if transposed else 2]), x_MK.dtype)
    y = lax.scan(group, nothing, (weight, plan.begin_S[:-1], plan.end_S[:-1]))[0][: plan.rows]
    y = jnp.where(jnp.arange(plan.rows)[:, None] < plan.end_S[-2], y, 0)
    return y if row_weight_M is None else (y.astype(jnp.float32) * row_weight_M[:, None]).astype(y.dtype)


def weight_gradient(
    x_MK: Float[Array, "M K"], dy_MN: Float[Array, "M N"], plan: Plan, dtype: jnp.dtype
) -> Float[Array, "G K N"]:
    """For every group the float32 sum of x^T dy over its rows, in dtype; zeros for a group without rows."""
    tile = row_tile(plan.rows, plan.groups)
    x, dy = (jnp.pad(rows, ((0, tile), (0, 0))) for rows in (x_MK, dy_MN))

    def group(_: None, of: tuple[Array, Array]) -> tuple[None, Array]:
        begin, end = of

        def add(i: Array, total: Array) -> Array:
            row = begin + i * tile
            own = row + jnp.arange(tile)[:, None] < end
            left, right = (jnp.where(own, lax.dynamic_slice_in_dim(rows, row, tile), 0) for rows in (x, dy))
            return total + jnp.matmul(left.T, right, precision="highest", preferred_element_type=jnp.float32)

        nothing = jnp.zeros((x_MK.shape[1], dy_MN.shape[1]), jnp.float32)
        return None, lax.fori_loop(0, -(-(end - begin) // tile), add, nothing).astype(dtype)

    return lax.scan(group, None, (plan.begin_S[:-1], plan.end_S[:-1]))[1]
