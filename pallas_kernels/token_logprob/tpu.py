"""TPU: logits of a tile live on chip alone; forward keeps statistics of them, backward their gradient in bfloat16.

The two products of the backward pass are left to XLA, part by part of the vocabulary: a kernel that kept the gradient
on chip would have to make the logits once for each of them.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.api import Slopes, Statistics
from pallas_kernels.token_logprob.xla import in_parts, products
from pallas_kernels.tuning import blocks

LANES = 128
MIB = 2**20
LOW = -1e30  # below all logits, and finite, so that 0 times it is 0
MOST_IDS = 16  # of a token: each is compared with every column, which the matrix unit hides up to about here


def obstacle(hidden: Array, ids: Array) -> str | None:
    """Why these shapes are not for this kernel, or None."""
    if hidden.dtype not in (jnp.bfloat16, jnp.float32):
        return f"hidden states are {hidden.dtype}, and it takes bfloat16 and float32"
    if hidden.shape[1] % LANES:
        return f"a width of {hidden.shape[1]} is no multiple of {LANES}"
    if ids.shape[1] > MOST_IDS:
        return f"{ids.shape[1]} ids of a token are more than {MOST_IDS}"
    return None


def statistics(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    temperature: float,
    *,
    interpret: bool | pltpu.InterpretParams = False,
) -> Statistics:
    """See Statistics. Lane by lane over the vocabulary's tiles; lanes meet in the last."""
    (T, D), V, J = hidden_TD.shape, head_DV.shape[1], ids_TJ.shape[1]
    sizes = _blocks(hidden_TD)
    rows, columns = sizes["rows"], sizes["columns"]
    lanes = pltpu.VMEM((rows, LANES), jnp.float32)
    found = pl.pallas_call(
        functools.partial(
            _statistics_kernel, vocabulary=V, inside=math.gcd(rows, sizes["inside"]), scale=1 / temperature
        ),
        out_shape=jax.ShapeDtypeStruct((T, LANES), jnp.float32),
        grid=(pl.cdiv(T, rows), pl.cdiv(V, columns)),
        in_specs=[
            pl.BlockSpec((rows, D), lambda t, v: (t, 0)),
            pl.BlockSpec((D, columns), lambda t, v: (0, v)),
            pl.BlockSpec((rows, J), lambda t, v: (t, 0)),
        ],
        out_specs=pl.BlockSpec((rows, LANES), lambda t, v: (t, 0)),
        scratch_shapes=[lanes, lanes, lanes, pltpu.VMEM((J, rows, LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=sizes["vmem_mib"] * MIB
        ),
        cost_estimate=_cost(hidden_TD, head_DV, T * LANES * 4),
        name="token_logprob_statistics_kernel",
        interpret=interpret,
    )(hidden_TD, head_DV, ids_TJ.astype(jnp.int32))
    return Statistics(found[:, 0], found[:, 1], found[:, 2], found[:, 3 : 3 + J])


def _statistics_kernel(hidden, head, ids, out, top, mass, moment, chosen, *, vocabulary, inside, scale):
    v, columns = pl.program_id(1), head.shape[1]

    @pl.when(v == 0)
    def _():
        top[...] = jnp.full_like(top, LOW)
        for sums in (mass, moment, chosen):
            sums[...] = jnp.zeros_like(sums)

    @pl.loop(0, hidden.shape[0] // inside)
    def _(i: Array) -> None:
        rows = pl.ds(pl.multiple_of(i * inside, inside), inside)
        z = _logits(hidden[rows], head[...], scale)
        parts = [z[:, at : at + LANES] for at in range(0, columns, LANES)]
        column = v * columns + jax.lax.broadcasted_iota(jnp.int32, (inside, LANES), 1)
        if vocabulary % columns:
            parts = [jnp.where(column + n * LANES < vocabulary, part, LOW) for n, part in enumerate(parts)]
        before = top[rows]
        now = functools.reduce(jnp.maximum, parts, before)
        lower = before - now
        kept = jnp.exp(lower)
        masses, moments = kept * mass[rows], kept * (moment[rows] + lower * mass[rows])
        picked = [chosen[j, rows] for j in range(chosen.shape[0])]
        for n, part in enumerate(parts):
            below = part - now
            p = jnp.exp(below)
            if vocabulary % columns:  # a lane that has seen no column yet has LOW - LOW
                p = jnp.where(column + n * LANES < vocabulary, p, 0)
            masses, moments = masses + p, moments + p * below
            at = column + n * LANES
            picked = [sum_ + jnp.where(at == ids[rows, j : j + 1], part, 0) for j, sum_ in enumerate(picked)]
        top[rows], mass[rows], moment[rows] = now, masses, moments
        for j, sum_ in enumerate(picked):
            chosen[j, rows] = sum_

    @pl.when(v == pl.num_programs(1) - 1)
    def _():
        @pl.loop(0, hidden.shape[0] // inside)
        def _(i: Array) -> None:
            rows = pl.ds(pl.multiple_of(i * inside, inside), inside)
            whole = top[rows].max(1, keepdims=True)
            lower = top[rows] - whole
            scales = jnp.exp(lower)
            found = [whole, (scales * mass[rows]).sum(1, keepdims=True)]
            found.append((scales * (moment[rows] + lower * mass[rows])).sum(1, keepdims=True))
            found += [chosen[j, rows].sum(1, keepdims=True) for j in range(chosen.shape[0])]
            lane = jax.lax.broadcasted_iota(jnp.int32, (inside, LANES), 1)
            packed = jnp.zeros((inside, LANES), jnp.float32)
            for n, one in enumerate(found):
                packed = jnp.where(lane == n, one, packed)
            out[rows] = packed


def gradients(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    slopes: Slopes,
    temperature: float,
    *,
    interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    """See xla.gradients."""
    J = ids_TJ.shape[1]
    told = jnp.stack([slopes.norm_T, slopes.constant_T, slopes.linear_T, *slopes.placed_TJ.T], axis=1)
    told_TL = jnp.pad(told, ((0, 0), (0, LANES - 3 - J)))

    def part(first: Array, columns_Dv: Array) -> tuple[Array, Array]:
        ids = ids_TJ.astype(jnp.int32) - first
        dz = _of_logits(hidden_TD, columns_Dv, ids, told_TL, temperature, interpret)
        return products(hidden_TD, dz, columns_Dv)

    return in_parts(part, hidden_TD, head_DV)


def _of_logits(
    hidden_TD: Array, columns_Dv: Array, ids_TJ: Array, told_TL: Array, temperature: float, interpret: object
) -> Float[Array, "T v"]:
    """The gradient of the loss by the logits before they were divided by the temperature, in the dtype of hidden."""
    (T, D), V, J = hidden_TD.shape, columns_Dv.shape[1], ids_TJ.shape[1]
    sizes = _blocks(hidden_TD)
    rows, columns = sizes["rows"], sizes["columns"]
    return pl.pallas_call(
        functools.partial(_of_logits_kernel, inside=math.gcd(rows, sizes["inside"]), scale=1 / temperature),
        out_shape=jax.ShapeDtypeStruct((T, V), hidden_TD.dtype),
        grid=(pl.cdiv(T, rows), pl.cdiv(V, columns)),
        in_specs=[
            pl.BlockSpec((rows, D), lambda t, v: (t, 0)),
            pl.BlockSpec((D, columns), lambda t, v: (0, v)),
            pl.BlockSpec((rows, J), lambda t, v: (t, 0)),
            pl.BlockSpec((rows, LANES), lambda t, v: (t, 0)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda t, v: (t, v)),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=sizes["vmem_mib"] * MIB
        ),
        cost_estimate=_cost(hidden_TD, columns_Dv, T * V * hidden_TD.dtype.itemsize),
        name="token_logprob_slopes_kernel",
        interpret=interpret,
    )(hidden_TD, columns_Dv, ids_TJ, told_TL)


def _of_logits_kernel(hidden, head, ids, told, dz, *, inside, scale):
    columns = head.shape[1]
    first = pl.program_id(1) * columns

    @pl.loop(0, hidden.shape[0] // inside)
    def _(i: Array) -> None:
        rows = pl.ds(pl.multiple_of(i * inside, inside), inside)
        z = _logits(hidden[rows], head[...], scale)
        norm, constant, linear, *placed = (told[rows, n : n + 1] for n in range(3 + ids.shape[1]))
        slope = -jnp.exp(z - norm) * (constant + linear * z)
        column = first + jax.lax.broadcasted_iota(jnp.int32, (inside, columns), 1)
        for j, value in enumerate(placed):
            slope += jnp.where(column == ids[rows, j : j + 1], value, 0)
        dz[rows] = (scale * slope).astype(dz.dtype)


def _logits(hidden: Array, head: Array, scale: float) -> Array:
    exact = "highest" if hidden.dtype == jnp.float32 else None
    z = jnp.dot(hidden, head, precision=exact, preferred_element_type=jnp.float32)
    return z if scale == 1 else z * scale


def _blocks(hidden: Array) -> dict[str, int]:
    return blocks("token_logprob", hidden.dtype, tokens=hidden.shape[0], width=hidden.shape[1])


def _cost(hidden: Array, head: Array, written: int) -> pl.CostEstimate:
    (T, D), V = hidden.shape, head.shape[1]
    read = hidden.size * hidden.dtype.itemsize + head.size * head.dtype.itemsize
    return pl.CostEstimate(flops=2 * T * D * V, transcendentals=T * V, bytes_accessed=read + written)
