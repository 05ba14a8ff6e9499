"""Copies of rows in another order, and their sums back. Gathers both ways: autodiff of a gather would scatter rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Places(NamedTuple):
    """Which slot lies at which of P places, said from both sides. Slot j N + n is the j-th of token n's k slots.

    slot_P: N k where a place is empty; place_Nk: P where a slot has no place.
    """

    slot_P: Int[Array, " P"]
    place_Nk: Int[Array, "N k"]


BLOCK = 256  # rows whose sums one matrix product makes; below 2**8 all numbers in it are exact in bfloat16 too


def running_sums(counts_NE: Int[Array, "N E"]) -> Int[Array, "N E"]:
    """Sums over the rows up to and with each, for numbers under 256 and sums under 2**24.

    As matrix products with a triangle of ones: a TPU takes 15 s to compile an argsort, 3 s a cumsum and 1 s this.
    """
    N, E = counts_NE.shape
    block = min(BLOCK, N)
    blocks = jnp.pad(counts_NE, ((0, -N % block), (0, 0))).reshape(-1, block, E).astype(jnp.float32)
    inside = jnp.einsum("ts,bse->bte", jnp.tril(jnp.ones((block, block))), blocks)
    before = jnp.cumsum(inside[:, -1], 0) - inside[:, -1]
    return (inside + before[:, None]).reshape(-1, E)[:N].astype(jnp.int32)


def inverse(place_M: Int[Array, " M"], places: int) -> Int[Array, " places"]:
    """Which of the M lies at each place, M where none does; places from `places` on are nowhere."""
    slots = jnp.arange(place_M.size)
    place_M = jnp.where(place_M < places, place_M, places + slots)  # no place twice, those out of bounds neither
    return jnp.full(places, place_M.size).at[place_M].set(slots, mode="drop", unique_indices=True)


def slots_of(values_Nk: Array) -> Array:
    """One value for each slot, (N k,). A TPU turns (N, k) into rows of slots j by j, and has to shuffle otherwise."""
    return values_Nk.T.reshape(-1)


def rows_at(x_ND: Float[Array, "N D"], index: Int[Array, "*index"]) -> Float[Array, "*index D"]:
    """x[index], zeros where that is out of bounds."""
    return jnp.take(x_ND, index, axis=0, mode="fill", fill_value=0)


def _at_places(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    N, slots = x_ND.shape[0], places.place_Nk.size
    return rows_at(x_ND, jnp.where(places.slot_P < slots, places.slot_P % N, N))


def _sums(y_PD: Float[Array, "P D"], weights_Nk: Float[Array, "N k"], places: Places) -> Float[Array, "N D"]:
    """One slot of each token at a time: where tokens came from other ranks, most slots have no place."""

    def add(total: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        place, weight = slot
        return total + rows_at(y_PD, place).astype(jnp.float32) * weight[:, None], None

    nothing = jnp.zeros((places.place_Nk.shape[0], y_PD.shape[1]), jnp.float32)
    return jax.lax.scan(add, nothing, (places.place_Nk.T, weights_Nk.T))[0]


@jax.custom_vjp
def copies(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    """At every place the row of its slot's token; zeros where the place is empty."""
    return _at_places(x_ND, places)


def _copies_forward(x: Array, places: Places) -> tuple[Array, Places]:
    return _at_places(x, places), places


def _copies_backward(places: Places, dy: Array) -> tuple[Array, None]:
    return _sums(dy, jnp.ones(places.place_Nk.shape, jnp.float32), places).astype(dy.dtype), None


copies.defvjp(_copies_forward, _copies_backward)


@jax.custom_vjp
def weighted_sum(y_PD: Float[Array, "P D"], weights_Nk: Float[Array, "N k"], places: Places) -> Float[Array, "N D"]:
    """For every token the sum of its slots' rows times their weights, float32. A slot without a place adds nothing."""
    return _sums(y_PD, weights_Nk, places)


def _weighted_sum_forward(y: Array, weights: Array, places: Places) -> tuple[Array, tuple[Array, Array, Places]]:
    return weighted_sum(y, weights, places), (y, weights, places)


def _weighted_sum_backward(saved: tuple[Array, Array, Places], dx: Array) -> tuple[Array, Array, None]:
    y, weights, places = saved
    weights_P = slots_of(weights).at[places.slot_P].get(mode="fill", fill_value=0)
    dx_P = _at_places(dx.astype(y.dtype), places)
    dw_P = (y.astype(jnp.float32) * dx_P).sum(-1)
    dw = dw_P.at[places.place_Nk].get(mode="fill", fill_value=0)
    return (dx_P * weights_P[:, None]).astype(y.dtype), dw.astype(weights.dtype), None


weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)
