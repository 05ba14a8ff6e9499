"""Copies of rows in another order, and their sums back. Gathers both ways: autodiff of a gather would scatter rows.

Numbers of tokens and slots lie with the tokens last, (k, N) or (E, N): a TPU keeps 128 of the last dimension side by
side, and takes long, to compile too, to turn (N, k) into anything else.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Places(NamedTuple):
    """Which slot lies at which of P places, said from both sides. Slot j N + n is the j-th of token n's k slots.

    slot_P: N k where a place is empty; place_kN: P where a slot has no place.
    """

    slot_P: Int[Array, " P"]
    place_kN: Int[Array, "k N"]


BLOCK = 256  # tokens whose sums one matrix product makes; below 2**8 all numbers in it are exact in bfloat16 too
LANES = 128  # numbers that a TPU keeps side by side


def running_sums(counts_EN: Int[Array, "E N"]) -> Int[Array, "E N"]:
    """Sums over the tokens up to and with each, for numbers under 256 and sums under 2**24.

    As matrix products with a triangle of ones: a TPU takes 15 s to compile an argsort, 3 s a cumsum and 1 s this.
    """
    E, N = counts_EN.shape
    block = min(BLOCK, N)
    blocks = jnp.pad(counts_EN, ((0, 0), (0, -N % block))).reshape(E, -1, block).astype(jnp.float32)
    inside = jnp.einsum("ebs,st->ebt", blocks, jnp.triu(jnp.ones((block, block))))
    before = jnp.cumsum(inside[..., -1], 1) - inside[..., -1]
    return (inside + before[..., None]).reshape(E, -1)[:, :N].astype(jnp.int32)


def of_each(values_RN: Int[Array, "R #N"], index_kN: Int[Array, "k N"]) -> Int[Array, "k N"]:
    """values[index[j, n], n], 0 for an index that is none of 0 .. R - 1. Not a gather: R is small."""
    chosen = index_kN[:, None] == jnp.arange(values_RN.shape[0])[:, None]
    return jnp.where(chosen, values_RN, 0).sum(1)


def inverse(place_M: Int[Array, " M"], places: int) -> Int[Array, " places"]:
    """Which of the M lies at each place, M where none does; places from `places` on are nowhere."""
    slots = jnp.arange(place_M.size)
    place_M = jnp.where(place_M < places, place_M, places + slots)  # no place twice, those out of bounds neither
    return jnp.full(places, place_M.size).at[place_M].set(slots, mode="drop", unique_indices=True)


def rows_at(x_ND: Float[Array, "N D"], index: Int[Array, "*index"]) -> Float[Array, "*index D"]:
    """x[index], zeros where that is out of bounds.

    A row that is a block of its own is copied as it lies. Rows of a TPU's matrix lie interleaved, two by two in
    bfloat16: to pick one takes shuffles, and four to nine seconds to compile instead of one.
    """
    N, D = x_ND.shape
    blocks = x_ND.reshape(N, -1, LANES) if D % LANES == 0 else x_ND
    return jnp.take(blocks, index, axis=0, mode="fill", fill_value=0).reshape(*index.shape, D)


def _at_places(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    N, slots = x_ND.shape[0], places.place_kN.size
    return rows_at(x_ND, jnp.where(places.slot_P < slots, places.slot_P % N, N))


def _sums(y_PD: Float[Array, "P D"], weights_kN: Float[Array, "k N"], places: Places) -> Float[Array, "N D"]:
    """One slot of each token at a time: where tokens came from other ranks, most slots have no place."""

    def add(total: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        place, weight = slot
        return total + rows_at(y_PD, place).astype(jnp.float32) * weight[:, None], None

    nothing = jnp.zeros((places.place_kN.shape[1], y_PD.shape[1]), jnp.float32)
    return jax.lax.scan(add, nothing, (places.place_kN, weights_kN))[0]


@jax.custom_vjp
def copies(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    """At every place the row of its slot's token; zeros where the place is empty."""
    return _at_places(x_ND, places)


def _copies_forward(x: Array, places: Places) -> tuple[Array, Places]:
    return _at_places(x, places), places


def _copies_backward(places: Places, dy: Array) -> tuple[Array, None]:
    return _sums(dy, jnp.ones(places.place_kN.shape, jnp.float32), places).astype(dy.dtype), None


copies.defvjp(_copies_forward, _copies_backward)


@jax.custom_vjp
def weighted_sum(y_PD: Float[Array, "P D"], weights_kN: Float[Array, "k N"], places: Places) -> Float[Array, "N D"]:
    """For every token the sum of its slots' rows times their weights, float32. A slot without a place adds nothing."""
    return _sums(y_PD, weights_kN, places)


def _weighted_sum_forward(y: Array, weights: Array, places: Places) -> tuple[Array, tuple[Array, Array, Places]]:
    return weighted_sum(y, weights, places), (y, weights, places)


def _weighted_sum_backward(saved: tuple[Array, Array, Places], dx: Array) -> tuple[Array, Array, None]:
    y, weights, places = saved
    weights_P = weights.reshape(-1).at[places.slot_P].get(mode="fill", fill_value=0)
    dx_P = _at_places(dx.astype(y.dtype), places)
    dw_P = (y.astype(jnp.float32) * dx_P).sum(-1)
    dw = dw_P.at[places.place_kN.reshape(-1)].get(mode="fill", fill_value=0).reshape(weights.shape)
    return (dx_P * weights_P[:, None]).astype(y.dtype), dw.astype(weights.dtype), None


weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)
