"""GPUs (Pallas with Triton): a program takes one visit of the plan and one tile of columns.

Tiles begin with their group's rows, so a visit has one matrix and no row is multiplied twice. The programs of a visit
follow each other: its rows stay in the second-level cache while the tiles of its matrix pass.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.plan import Plan
from pallas_kernels.product import contract
from pallas_kernels.tuning import blocks

UNIT = 16  # widths are multiples of this: the least that the matrix unit contracts


def obstacle(x: Array, weight: Array, plan: Plan) -> str | None:
    """Why these shapes are not for this kernel, or None."""
    if x.dtype not in (jnp.bfloat16, jnp.float32):
        return f"rows are {x.dtype}, and it takes bfloat16 and float32"
    if plan.rows == 0:
        return "there is no row"
    if plan.aligned or plan.tile & (plan.tile - 1) or plan.tile < UNIT:
        return f"the plan's tiles of {plan.tile} rows are aligned or no power of two; make it with work_list for a GPU"
    narrow = next((width for width in weight.shape[1:] if width % UNIT), None)
    return narrow and f"a width of {narrow} is no multiple of {UNIT}; store it padded (padded_width)"


def forward(
    x_MK: Float[Array, "M K"],
    weight: Float[Array, "G K N"],
    plan: Plan,
    *,
    transposed: bool,
    activation: str | None,
    row_weight_M: Float[Array, " M"] | None,
    interpret: bool = False,
) -> Float[Array, "M N"]:
    """See xla.forward."""
    M, K = x_MK.shape
    N = weight.shape[1 if transposed else 2]
    sizes = _blocks(x_MK, plan)
    operands = [plan.visits[None], plan.group_V, plan.row_V, plan.end_S, x_MK, weight]
    if row_weight_M is not None:
        operands.append(row_weight_M.astype(jnp.float32))
    columns = sizes["columns"]
    return pl.pallas_call(
        functools.partial(
            _forward_kernel, tile=plan.tile, columns=columns, depth=_depth(K, sizes["depth"]), transposed=transposed,
            activation=activation,
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), x_MK.dtype),
        grid=(pl.cdiv(N, columns), plan.group_V.size),
        compiler_params=triton.CompilerParams(num_warps=sizes["warps"], num_stages=sizes["stages"]),
        name="grouped_matmul_transposed_kernel" if transposed else "grouped_matmul_kernel",
        interpret=interpret,
    )(*operands)  # fmt: skip


def _forward_kernel(visits, group, row, end, x, weight, *rest, tile, columns, depth, transposed, activation) -> None:
    row_weight, y = rest if len(rest) == 2 else (None, rest[0])
    n, v = pl.program_id(0) * columns, pl.program_id(1)
    N, K = y.shape[1], x.shape[1]

    g, first = group[v], row[v]
    own = (first + jnp.arange(tile) < end[g])[:, None]
    inside = n + jnp.arange(columns) < N
    rows, cols = pl.ds(first, tile), pl.ds(n, columns)

    @pl.when((v < visits[0]) & (g < weight.shape[0]))
    def _():
        def add(k: Array, total: Array) -> Array:
            deep = pl.ds(k * depth, depth)
            left = triton.load(x.at[rows, deep], mask=own, other=0)
            if transposed:
                right = triton.load(weight.at[g, cols, deep], mask=inside[:, None], other=0).T
            else:
                right = triton.load(weight.at[g, deep, cols], mask=inside[None], other=0)
            return total + contract(left, right, (1, 0))

        product = jax.lax.fori_loop(0, K // depth, add, jnp.zeros((tile, columns), jnp.float32))
        if activation == "relu2":
            product = jnp.square(jnp.maximum(product, 0))
        if row_weight is not None:
            product *= triton.load(row_weight.at[rows], mask=own[:, 0], other=0)[:, None]
        triton.store(y.at[rows, cols], product.astype(y.dtype), mask=own & inside[None])

    @pl.when((v < visits[0]) & (g == weight.shape[0]))
    def _():
        triton.store(y.at[rows, cols], jnp.zeros((tile, columns), y.dtype), mask=own & inside[None])


def weight_gradient(
    x_MK: Float[Array, "M K"],
    dy_MN: Float[Array, "M N"],
    plan: Plan,
    dtype: jnp.dtype,
    *,
    interpret: bool = False,
) -> Float[Array, "G K N"]:
    """See xla.weight_gradient. A program adds up one tile of one group's gradient over the group's rows."""
    K, N = x_MK.shape[1], dy_MN.shape[1]
    sizes = _blocks(x_MK, plan)
    height, columns = sizes["gradient_rows"], sizes["gradient_columns"]
    return pl.pallas_call(
        functools.partial(_weight_gradient_kernel, height=height, columns=columns, depth=sizes["gradient_depth"]),
        out_shape=jax.ShapeDtypeStruct((plan.groups, K, N), dtype),
        grid=(pl.cdiv(N, columns), pl.cdiv(K, height), plan.groups),
        compiler_params=triton.CompilerParams(num_warps=sizes["warps"], num_stages=sizes["stages"]),
        name="grouped_matmul_weight_gradient_kernel",
        interpret=interpret,
    )(plan.begin_S, plan.end_S, x_MK, dy_MN)


def _weight_gradient_kernel(begin, end, x, dy, dw, *, height, columns, depth) -> None:
    n, k, g = pl.program_id(0) * columns, pl.program_id(1) * height, pl.program_id(2)
    first, last = begin[g], end[g]
    high, wide = k + jnp.arange(height) < x.shape[1], n + jnp.arange(columns) < dy.shape[1]

    def add(i: Array, total: Array) -> Array:
        row = first + i * depth
        own = (row + jnp.arange(depth) < last)[:, None]
        rows = pl.ds(row, depth)
        left = triton.load(x.at[rows, pl.ds(k, height)], mask=own & high[None], other=0)
        right = triton.load(dy.at[rows, pl.ds(n, columns)], mask=own & wide[None], other=0)
        return total + contract(left.T, right, (1, 0))

    steps = jax.lax.div(last - first + depth - 1, depth)
    total = jax.lax.fori_loop(0, steps, add, jnp.zeros((height, columns), jnp.float32))
    place = dw.at[g, pl.ds(k, height), pl.ds(n, columns)]
    triton.store(place, total.astype(dw.dtype), mask=high[:, None] & wide[None])


def _depth(contracted: int, most: int) -> int:
    """The largest power of two that divides the contracted width, at most the tuned one."""
    return min(most, contracted & -contracted)


def _blocks(x: Array, plan: Plan) -> dict[str, int]:
    return blocks("grouped_matmul_gpu", x.dtype, rows=plan.rows, groups=plan.groups)
