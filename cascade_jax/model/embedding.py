"""Rows of an embedding, whose gradient is made of matrix products: autodiff of a gather would scatter rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.model.dispatch import copies, rows_at
from cascade_jax.model.experts import by_expert
from pallas_kernels.grouped_matmul import weight_gradient, work_list

BLOCK = 128  # ids whose rows one product adds to


@jax.custom_vjp
def lookup(table_VD: Float[Array, "V D"], ids_N: Int[Array, " N"]) -> Float[Array, "N D"]:
    """The rows of the ids; zeros for an id that is none of 0 .. V - 1."""
    rows = table_VD.shape[0]
    return rows_at(table_VD, jnp.where(ids_N < 0, rows, ids_N))


def _forward(table: Array, ids: Array) -> tuple[Array, tuple[Array, Array]]:
    return lookup(table, ids), (table, ids)


def _backward(saved: tuple[Array, Array], dy_ND: Array) -> tuple[Array, None]:
    """Tokens go by blocks of ids as they go to experts: to each block is added one-hot(id in its block)^T dy."""
    table, ids = saved
    V, N = table.shape[0], ids.size
    blocks = -(-V // BLOCK)
    block = jnp.where((ids >= 0) & (ids < V), ids // BLOCK, blocks)
    places, sizes = by_expert(block[None], experts=blocks, rows=N)
    within = jnp.append(ids % BLOCK, BLOCK)[places.slot_P]  # an empty place is no id's
    one_hot = jax.nn.one_hot(within, BLOCK, dtype=dy_ND.dtype)
    d_table = weight_gradient(one_hot, copies(dy_ND, places), work_list(sizes, rows=N), table.dtype)
    return d_table.reshape(blocks * BLOCK, -1)[:V], None


lookup.defvjp(_forward, _backward)
