"""The portable version: the vocabulary in parts, all tokens at once.

A part's gradient of the head is then complete, and only the (T, D) gradient of hidden states is added up in memory.
Nothing is gathered or scattered: targets are found by comparison, many ids by two small one-hot factors.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.token_logprob.api import Slopes, Statistics
from pallas_kernels.tuning import blocks

LANES = 128  # an id is split into its LANES-wide column and its place therein
FEW = 2  # ids of a token that are compared with every column; more go through factors


def statistics(
    hidden_TD: Float[Array, "T D"], head_DV: Float[Array, "D V"], ids_TJ: Int[Array, "T J"], temperature: float
) -> Statistics:
    """See Statistics. One pass, by the running maximum of online softmax (arXiv 1805.02867)."""
    T, J = ids_TJ.shape

    def add(known: Statistics, first: Array, columns: Array) -> Statistics:
        z = _logits(hidden_TD, columns, temperature)
        top = jnp.maximum(known.top_T, z.max(1))
        below = z - top[:, None]
        p = jnp.exp(below)
        lower = jnp.where(known.mass_T > 0, known.top_T - top, 0)
        scale = jnp.exp(lower)
        mass = p.sum(1) + scale * known.mass_T
        moment = (p * below).sum(1) + scale * (known.moment_T + lower * known.mass_T)
        return Statistics(top, mass, moment, known.logits_TJ + _picked(z, ids_TJ - first))

    nothing = jnp.zeros(T, jnp.float32)
    start = Statistics(jnp.full(T, -jnp.inf), nothing, nothing, jnp.zeros((T, J), jnp.float32))
    width, whole, rest = _parts(hidden_TD, head_DV)
    if whole == 1 and not rest:
        return add(start, jnp.int32(0), head_DV)

    def step(known: Statistics, i: Array) -> tuple[Statistics, None]:
        return add(known, i * width, lax.dynamic_slice_in_dim(head_DV, i * width, width, 1)), None

    found = lax.scan(step, start, jnp.arange(whole))[0]
    return add(found, jnp.int32(whole * width), head_DV[:, whole * width :]) if rest else found


def gradients(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    ids_TJ: Int[Array, "T J"],
    slopes: Slopes,
    temperature: float,
) -> tuple[Float[Array, "T D"], Float[Array, "D V"]]:
    """By hidden states (float32) and by the head (rounded to its dtype after a float32 sum over all tokens)."""

    def part(first: Array, columns: Array) -> tuple[Array, Array]:
        z = _logits(hidden_TD, columns, temperature)
        p = jnp.exp(z - slopes.norm_T[:, None])
        dz = _placed(slopes.placed_TJ, ids_TJ - first, z.shape[1])
        dz -= p * (slopes.constant_T[:, None] + slopes.linear_T[:, None] * z)
        dz = (dz / temperature).astype(hidden_TD.dtype)
        return products(hidden_TD, dz, columns)

    return in_parts(part, hidden_TD, head_DV)


def products(hidden_TD: Array, dz_Tv: Array, columns_Dv: Array) -> tuple[Float[Array, "T D"], Float[Array, "D v"]]:
    """What the gradient by a part's logits means for hidden states and for the head's columns, float32."""
    return _matmul(dz_Tv, columns_Dv.T), _matmul(hidden_TD.T, dz_Tv)


def in_parts(
    part: Callable[[Array, Array], tuple[Array, Array]], hidden_TD: Array, head_DV: Array
) -> tuple[Array, Array]:
    """part(first column, columns) -> gradients, over all parts: the first kind added up, the second put in place."""
    width, whole, rest = _parts(hidden_TD, head_DV)
    if whole == 1 and not rest:
        d_hidden, d_head = part(jnp.int32(0), head_DV)
        return d_hidden, d_head.astype(head_DV.dtype)

    def put(total: tuple[Array, Array], first: Array, columns: Array) -> tuple[Array, Array]:
        d_hidden, d_columns = part(first, columns)
        d_head = lax.dynamic_update_slice_in_dim(total[1], d_columns.astype(head_DV.dtype), first, 1)
        return total[0] + d_hidden, d_head

    def step(total: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
        return put(total, i * width, lax.dynamic_slice_in_dim(head_DV, i * width, width, 1)), None

    start = (jnp.zeros(hidden_TD.shape, jnp.float32), jnp.zeros_like(head_DV))
    total = lax.scan(step, start, jnp.arange(whole))[0]
    return put(total, jnp.int32(whole * width), head_DV[:, whole * width :]) if rest else total


def _parts(hidden: Array, head: Array) -> tuple[int, int, int]:
    """(columns of a part, whole parts, columns left over), so that a part's logits stay within the tuned number."""
    tokens, vocabulary = hidden.shape[0], head.shape[1]
    most = blocks("token_logprob", hidden.dtype, tokens=tokens, width=hidden.shape[1])["part_logits"]
    width = min(vocabulary, max(LANES, most // tokens // LANES * LANES))
    return width, *divmod(vocabulary, width)


def _logits(hidden: Array, columns: Array, temperature: float) -> Float[Array, "T v"]:
    z = _matmul(hidden, columns)
    return z if temperature == 1 else z / temperature


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest", preferred_element_type=jnp.float32)


def _picked(z_Tv: Float[Array, "T v"], ids_TJ: Int[Array, "T J"]) -> Float[Array, "T J"]:
    """z of each id, 0 where it is not among the columns."""
    if ids_TJ.shape[1] <= FEW:
        return jnp.stack([jnp.where(_column(ids, z_Tv.shape[1]), z_Tv, 0).sum(1) for ids in ids_TJ.T], axis=1)
    high, low = _factors(ids_TJ, z_Tv.shape[1])
    z = jnp.pad(z_Tv, ((0, 0), (0, -z_Tv.shape[1] % LANES))).reshape(z_Tv.shape[0], -1, LANES)
    return (jnp.einsum("tjh,thl->tjl", high, z, precision="highest") * low).sum(2)


def _placed(values_TJ: Float[Array, "T J"], ids_TJ: Int[Array, "T J"], columns: int) -> Float[Array, "T v"]:
    """The sum of each id's values at its column, zero elsewhere: what a scatter would do."""
    if ids_TJ.shape[1] <= FEW:
        each = zip(ids_TJ.T, values_TJ.T, strict=True)
        return sum(jnp.where(_column(ids, columns), values[:, None], 0) for ids, values in each)
    high, low = _factors(ids_TJ, columns)
    placed = jnp.einsum("tjh,tjl->thl", high * values_TJ[..., None], low, precision="highest")
    return placed.reshape(ids_TJ.shape[0], -1)[:, :columns]


def _column(ids_T: Int[Array, " T"], columns: int) -> Bool[Array, "T v"]:
    return ids_T[:, None] == jnp.arange(columns)


def _factors(ids_TJ: Int[Array, "T J"], columns: int) -> tuple[Float[Array, "T J h"], Float[Array, "T J LANES"]]:
    """One-hot in the id's LANES-wide column (of none where the id is outside) and in its place therein."""
    high = (ids_TJ // LANES)[..., None] == jnp.arange(-(-columns // LANES))
    low = (ids_TJ % LANES)[..., None] == jnp.arange(LANES)
    inside = ((ids_TJ >= 0) & (ids_TJ < columns))[..., None]
    return (high & inside).astype(jnp.float32), low.astype(jnp.float32)
