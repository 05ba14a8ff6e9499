"""GPUs (Pallas with Triton): logits of a tile live in registers alone; otherwise as on TPUs.

A program takes a tile of tokens and a share of the vocabulary, so that there are programs enough for all processors.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.api import Slopes, Statistics
from pallas_kernels.token_logprob.xla import in_parts, products
from pallas_kernels.tuning import blocks

UNIT = 16  # the width is a multiple of this: the least that the matrix unit contracts
LOW = -1e30  # below all logits, and finite, so that 0 times it is 0
MOST_IDS = 16  # of a token: each is compared with every column


def obstacle(hidden: Array, ids: Array) -> str | None:
    """Why these shapes are not for this kernel, or None."""
    if hidden.dtype not in (jnp.bfloat16, jnp.float32):
        return f"hidden states are {hidden.dtype}, and it takes bfloat16 and float32"
    if hidden.shape[1] % UNIT:
        return f"a width of {hidden.shape[1]} is no multiple of {UNIT}"
    if ids.shape[1] > MOST_IDS:
        return f"{ids.shape[1]} ids of a token are more than {MOST_IDS}"
    return None


def statistics(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    temperature: float,
    *,
    interpret: bool = False,
) -> Statistics:
    """See Statistics."""
    (T, J), V, sizes = ids_TJ.shape, head_DV.shape[1], _blocks(hidden_TD)
    tiles = pl.cdiv(V, sizes["columns"])
    share = pl.cdiv(tiles, sizes["shares"])
    shares = pl.cdiv(tiles, share)
    found = pl.pallas_call(
        functools.partial(_statistics_kernel, tile=_tile(hidden_TD, sizes), share=share, scale=1 / temperature),
        out_shape=jax.ShapeDtypeStruct((shares, 3 + J, T), jnp.float32),
        grid=(pl.cdiv(T, sizes["rows"]), shares),
        compiler_params=triton.CompilerParams(num_warps=sizes["warps"], num_stages=sizes["stages"]),
        name="token_logprob_statistics_kernel",
        interpret=interpret,
    )(hidden_TD, head_DV, ids_TJ.T.astype(jnp.int32))
    top = found[:, 0].max(0)
    lower = found[:, 0] - top
    kept = jnp.exp(lower)
    moment = (kept * (found[:, 2] + lower * found[:, 1])).sum(0)
    return Statistics(top, (kept * found[:, 1]).sum(0), moment, found[:, 3:].sum(0).T)


def _statistics_kernel(hidden, head, ids, out, *, tile, share, scale) -> None:
    height, width, _ = tile
    rows = pl.ds(pl.program_id(0) * height, height)
    own = pl.program_id(0) * height + jnp.arange(height) < hidden.shape[0]
    first, share_id = pl.program_id(1) * share, pl.program_id(1)
    wanted = [_row(ids, j, rows, own, -1) for j in range(ids.shape[0])]

    def add(i: Array, known: tuple[Array, ...]) -> tuple[Array, ...]:
        top, mass, moment, *chosen = known
        column = (first + i) * width
        z, inside = _logits(hidden, head, rows, own, column, tile, scale)
        z = jnp.where(inside, z, LOW)
        now = jnp.maximum(top, z.max(1))
        below = z - now[:, None]
        p = jnp.where(inside, jnp.exp(below), 0)
        lower = top - now
        kept = jnp.exp(lower)
        moment = kept * (moment + lower * mass) + (p * below).sum(1)
        places = column + jnp.arange(width)[None]
        chosen = [
            at + jnp.where((places == id_[:, None]) & inside, z, 0).sum(1)
            for at, id_ in zip(chosen, wanted, strict=True)
        ]
        return now, kept * mass + p.sum(1), moment, *chosen

    nothing = jnp.zeros(height, jnp.float32)
    start = (nothing + LOW, nothing, nothing, *(nothing for _ in wanted))
    for n, one in enumerate(jax.lax.fori_loop(0, share, add, start)):
        triton.store(out.at[share_id, pl.ds(n, 1), rows], one[None], mask=own[None])


def gradients(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    slopes: Slopes,
    temperature: float,
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    """See xla.gradients."""
    told = jnp.stack([slopes.norm_T, slopes.constant_T, slopes.linear_T, *slopes.placed_TJ.T])

    def part(first: Array, columns_Dv: Array) -> tuple[Array, Array]:
        ids = ids_TJ.T.astype(jnp.int32) - first
        dz = _of_logits(hidden_TD, columns_Dv, ids, told, temperature, interpret)
        return products(hidden_TD, dz, columns_Dv)

    return in_parts(part, hidden_TD, head_DV)


def _of_logits(
    hidden_TD: Array, columns_Dv: Array, ids_JT: Array, told: Array, temperature: float, interpret: bool
) -> Float[Array, "T v"]:
    """The gradient of the loss by the logits before they were divided by the temperature, in the dtype of hidden."""
    T, V, sizes = hidden_TD.shape[0], columns_Dv.shape[1], _blocks(hidden_TD)
    return pl.pallas_call(
        functools.partial(_slopes_kernel, tile=_tile(hidden_TD, sizes), scale=1 / temperature),
        out_shape=jax.ShapeDtypeStruct((T, V), hidden_TD.dtype),
        grid=(pl.cdiv(T, sizes["rows"]), pl.cdiv(V, sizes["columns"])),
        compiler_params=triton.CompilerParams(num_warps=sizes["warps"], num_stages=sizes["stages"]),
        name="token_logprob_slopes_kernel",
        interpret=interpret,
    )(hidden_TD, columns_Dv, ids_JT, told)


def _slopes_kernel(hidden, head, ids, told, dz, *, tile, scale) -> None:
    height, width, _ = tile
    rows = pl.ds(pl.program_id(0) * height, height)
    own = pl.program_id(0) * height + jnp.arange(height) < hidden.shape[0]
    column = pl.program_id(1) * width
    z, inside = _logits(hidden, head, rows, own, column, tile, scale)
    norm, constant, linear, *placed = (_row(told, n, rows, own, 0)[:, None] for n in range(told.shape[0]))
    slope = -jnp.exp(z - norm) * (constant + linear * z)
    places = column + jnp.arange(width)[None]
    for j, value in enumerate(placed):
        id_ = _row(ids, j, rows, own, -1)[:, None]
        slope += jnp.where(places == id_, value, 0)
    triton.store(dz.at[rows, pl.ds(column, width)], (scale * slope).astype(dz.dtype), mask=own[:, None] & inside)


def _row(of, n: int, tokens: pl.Slice, own: Array, other: int) -> Array:
    """Row n, as a slice of one: plain numbers are no index of a load."""
    return triton.load(of.at[pl.ds(n, 1), tokens], mask=own[None], other=other).reshape(-1)


def _logits(hidden, head, rows: pl.Slice, own: Array, column: Array, tile: tuple, scale: float) -> tuple[Array, Array]:
    """Logits of a tile, and which of its columns are in the vocabulary."""
    height, width, depth = tile
    inside = (column + jnp.arange(width) < head.shape[1])[None]

    def add(k: Array, total: Array) -> Array:
        deep = pl.ds(k * depth, depth)
        left = triton.load(hidden.at[rows, deep], mask=own[:, None], other=0)
        right = triton.load(head.at[deep, pl.ds(column, width)], mask=inside, other=0)
        exact = "highest" if left.dtype == jnp.float32 else None
        return total + jnp.dot(left, right, precision=exact, preferred_element_type=jnp.float32)

    z = jax.lax.fori_loop(0, hidden.shape[1] // depth, add, jnp.zeros((height, width), jnp.float32))
    return (z if scale == 1 else z * scale), inside


def _tile(hidden: Array, sizes: dict[str, int]) -> tuple[int, int, int]:
    """Tokens, columns, and how much of the width is contracted at a time: a power of two that divides it."""
    width = hidden.shape[1]
    return sizes["rows"], sizes["columns"], min(sizes["depth"], width & -width)


def _blocks(hidden: Array) -> dict[str, int]:
    return blocks("token_logprob_gpu", hidden.dtype, tokens=hidden.shape[0], width=hidden.shape[1])
