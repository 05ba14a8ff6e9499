"""TPU: one visit of the plan is one step of the grid, with the whole contraction inside.

Visits go by group, so a group's matrix is fetched once per column tile, and the next one's arrives behind the product.
A tile that several groups share stays on chip between their visits; each writes its own rows.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.plan import LANES, Plan
from pallas_kernels.product import contract
from pallas_kernels.tuning import blocks

MIB = 2**20


def obstacle(x: Array, weight: Array, plan: Plan) -> str | None:
    """Why these shapes are not for this kernel, or None."""
    if x.dtype not in (jnp.bfloat16, jnp.float32):
        return f"rows are {x.dtype}, and it takes bfloat16 and float32"
    if plan.rows == 0:
        return "there is no row"
    if not plan.aligned or plan.tile % 16:
        return "the plan's tiles are not aligned to 16 rows; make it with work_list for a TPU"
    narrow = min(weight.shape[1:])
    if narrow % LANES:
        return f"a width of {narrow} is no multiple of {LANES}; store it padded (padded_width)"
    return None


def forward(
    x_MK: Float[Array, "M K"],
    weight: Float[Array, "G K N"],
    plan: Plan,
    *,
    transposed: bool,
    activation: str | None,
    row_weight_M: Float[Array, " M"] | None,
    interpret: bool | pltpu.InterpretParams = False,
) -> Float[Array, "M N"]:
    """See xla.forward. The matrices of the input gradient are read transposed by the matrix unit, not copied."""
    M, K = x_MK.shape
    N = weight.shape[1 if transposed else 2]
    sizes = _blocks(x_MK, plan)
    columns = even_tile(N, sizes["columns_transposed" if transposed else "columns"], sizes["cores"])
    in_specs = [
        pl.BlockSpec((plan.tile, K), lambda n, v, group, weight, tile, begin, end: (tile[v], 0)),
        pl.BlockSpec((None, columns, K), lambda n, v, group, weight, tile, begin, end: (weight[v], n, 0))
        if transposed
        else pl.BlockSpec((None, K, columns), lambda n, v, group, weight, tile, begin, end: (weight[v], 0, n)),
    ]
    operands = [x_MK, weight]
    if row_weight_M is not None:
        in_specs.append(pl.BlockSpec((1, plan.tile), lambda n, v, group, weight, tile, begin, end: (0, tile[v])))
        operands.append(row_weight_M.astype(jnp.float32)[None])
    return pl.pallas_call(
        functools.partial(
            _forward_kernel,
            groups=plan.groups,
            transposed=transposed,
            activation=activation,
            inside=math.gcd(plan.tile, sizes["inside"]),
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), x_MK.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(pl.cdiv(N, columns), plan.visits),
            in_specs=in_specs,
            out_specs=pl.BlockSpec((plan.tile, columns), lambda n, v, group, weight, tile, begin, end: (tile[v], n)),
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=sizes["vmem_mib"] * MIB
        ),
        cost_estimate=_cost(M, K, N, x_MK, weight, N // columns),
        name="grouped_matmul_transposed_kernel" if transposed else "grouped_matmul_kernel",
        interpret=interpret,
    )(*_scalars(plan), *operands)


def _forward_kernel(group, _weight, tile, begin, end, x, w, *rest, groups, transposed, activation, inside):
    row_weight, y = rest if len(rest) == 2 else (None, rest[0])
    v = pl.program_id(1)
    g = group[v]
    first = tile[v] * y.shape[0]

    def write(rows: pl.Slice, product: Array) -> None:
        own = _own_rows(first + rows.start, begin[g], end[g], product.shape)
        y[rows] = jnp.where(own, product.astype(y.dtype), y[rows])

    @pl.when(g < groups)
    def _():
        @_each_part(first, begin[g], end[g], y.shape[0], inside)
        def _(rows: pl.Slice) -> None:
            product = contract(x[rows], w[...], (1, 1 if transposed else 0))
            if activation == "relu2":
                product = jnp.square(jnp.maximum(product, 0))
            if row_weight is not None:
                product *= jnp.transpose(row_weight[:, rows])
            write(rows, product)

    @pl.when(g == groups)
    def _():
        @_each_part(first, begin[g], end[g], y.shape[0], inside)
        def _(rows: pl.Slice) -> None:
            write(rows, jnp.zeros((inside, y.shape[1]), y.dtype))


def _each_part(first: Array, begin: Array, end: Array, tile: int, inside: int) -> Callable:
    """Runs a function for every `inside` rows of the tile among which are some of the group's."""

    def run(body: Callable[[pl.Slice], None]) -> None:
        lowest = jax.lax.div(jnp.maximum(begin - first, 0), inside)  # not negative, where // would ask for signs
        upto = jax.lax.div(jnp.minimum(end - first, tile) + inside - 1, inside)
        highest = jnp.where(begin < end, upto, lowest)

        @pl.loop(lowest, highest)
        def _(i: Array) -> None:
            body(pl.ds(pl.multiple_of(i * inside, inside), inside))

    return run


def weight_gradient(
    x_MK: Float[Array, "M K"],
    dy_MN: Float[Array, "M N"],
    plan: Plan,
    dtype: jnp.dtype,
    *,
    interpret: bool | pltpu.InterpretParams = False,
) -> Float[Array, "G K N"]:
    """See xla.weight_gradient. A group's visits follow each other and add up on chip."""
    (M, K), N = x_MK.shape, dy_MN.shape[1]
    sizes = _blocks(x_MK, plan)
    rows, columns = even_tile(K, sizes["gradient_rows"], 1), even_tile(N, sizes["gradient_columns"], sizes["cores"])
    last = plan.groups - 1
    return pl.pallas_call(
        functools.partial(
            _weight_gradient_kernel, groups=plan.groups, inside=math.gcd(plan.tile, sizes["gradient_inside"])
        ),
        out_shape=jax.ShapeDtypeStruct((plan.groups, K, N), dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(pl.cdiv(N, columns), pl.cdiv(K, rows), plan.visits),
            in_specs=[
                pl.BlockSpec((plan.tile, rows), lambda n, k, v, group, weight, tile, begin, end: (tile[v], k)),
                pl.BlockSpec((plan.tile, columns), lambda n, k, v, group, weight, tile, begin, end: (tile[v], n)),
            ],
            out_specs=pl.BlockSpec(
                (None, rows, columns),
                lambda n, k, v, group, weight, tile, begin, end: (jnp.minimum(group[v], last), k, n),
            ),
            scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=sizes["vmem_mib"] * MIB
        ),
        cost_estimate=_cost(M, K, N, x_MK, dy_MN, N // columns),
        name="grouped_matmul_weight_gradient_kernel",
        interpret=interpret,
    )(*_scalars(plan), x_MK, dy_MN)


def _weight_gradient_kernel(group, _weight, tile, begin, end, x, dy, dw, total, *, groups, inside):
    v, visits = pl.program_id(2), pl.num_programs(2)
    g = group[v]
    mine = g < groups

    @pl.when(mine & ((v == 0) | (group[jnp.maximum(v - 1, 0)] != g)))
    def _():
        total[...] = jnp.zeros_like(total)

    @pl.when(mine)
    def _():
        first = tile[v] * x.shape[0]

        @_each_part(first, begin[g], end[g], x.shape[0], inside)
        def _(rows: pl.Slice) -> None:
            # Both: what another group's or no row holds may be infinite, and 0 times that is not 0.
            left, right = (
                jnp.where(_own_rows(first + rows.start, begin[g], end[g], (inside, a.shape[1])), a[rows], 0)
                for a in (x, dy)
            )
            total[...] += contract(left, right, (0, 0))

    @pl.when(mine & ((v == visits - 1) | (group[jnp.minimum(v + 1, visits - 1)] != g)))
    def _():
        dw[...] = total[...].astype(dw.dtype)


def even_tile(width: int, most: int, cores: int) -> int:
    """Columns of a tile: a multiple of LANES, at most `most`, so that the cores get about equal shares of the width."""
    tiles = -(-width // most)
    tiles = -(-tiles // cores) * cores
    return -(-width // (tiles * LANES)) * LANES


def _own_rows(first: Array, begin: Array, end: Array, shape: tuple[int, ...]) -> Array:
    """True in the group's rows, of as many as the shape has from the first."""
    row = first + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    return (row >= begin) & (row < end)


def _scalars(plan: Plan) -> tuple[Array, ...]:
    return plan.group_V, plan.weight_V, plan.row_V // plan.tile, plan.begin_S, plan.end_S


def _blocks(x: Array, plan: Plan) -> dict[str, int]:
    return blocks("grouped_matmul", x.dtype, rows=plan.rows, groups=plan.groups)


def _cost(M: int, K: int, N: int, x: Array, other: Array, reads: int) -> pl.CostEstimate:
    item = x.dtype.itemsize
    moved = x.size * item * max(1, reads) + other.size * item + M * N * item
    return pl.CostEstimate(flops=2 * M * K * N, transcendentals=0, bytes_accessed=moved)
