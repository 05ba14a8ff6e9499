"""Copies of rows in another order, and their sums back. Gathers both ways: autodiff of a gather would scatter rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Places(NamedTuple):
    """Which slot lies at which of P places, said from both sides. Slot n k + j is the j-th of token n's k slots.

    slot_P: N k where a place is empty; place_Nk: P where a slot has no place.
    """

    slot_P: Int[Array, " P"]
    place_Nk: Int[Array, "N k"]


def _at_places(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    return x_ND.at[places.slot_P // places.place_Nk.shape[1]].get(mode="fill", fill_value=0)


def _at_slots(y_PD: Float[Array, "P D"], places: Places) -> Float[Array, "N k D"]:
    return y_PD.at[places.place_Nk].get(mode="fill", fill_value=0).astype(jnp.float32)


@jax.custom_vjp
def copies(x_ND: Float[Array, "N D"], places: Places) -> Float[Array, "P D"]:
    """At every place the row of its slot's token; zeros where the place is empty."""
    return _at_places(x_ND, places)


def _copies_forward(x: Array, places: Places) -> tuple[Array, Places]:
    return _at_places(x, places), places


def _copies_backward(places: Places, dy: Array) -> tuple[Array, None]:
    return _at_slots(dy, places).sum(1).astype(dy.dtype), None


copies.defvjp(_copies_forward, _copies_backward)


@jax.custom_vjp
def weighted_sum(y_PD: Float[Array, "P D"], weights_Nk: Float[Array, "N k"], places: Places) -> Float[Array, "N D"]:
    """For every token the sum of its slots' rows times their weights, float32. A slot without a place adds nothing."""
    return (_at_slots(y_PD, places) * weights_Nk[..., None]).sum(1)


def _weighted_sum_forward(y: Array, weights: Array, places: Places) -> tuple[Array, tuple[Array, Array, Places]]:
    return weighted_sum(y, weights, places), (y, weights, places)


def _weighted_sum_backward(saved: tuple[Array, Array, Places], dx: Array) -> tuple[Array, Array, None]:
    y, weights, places = saved
    weights_P = weights.reshape(-1).at[places.slot_P].get(mode="fill", fill_value=0)
    dy = _at_places(dx, places) * weights_P[:, None]
    dw = (_at_slots(y, places) * dx[:, None]).sum(-1)
    return dy.astype(y.dtype), dw.astype(weights.dtype), None


weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)
