"""Expert parallelism: tokens travel to the ranks that hold their experts, and sums come back. Runs inside shard_map.

A token goes to a rank at most once, however many of its experts live there, and none is dropped: what a rank sends to
another is a stream of tokens in order, and whatever does not fit into the buffers waits for another round. Buffers are
made for balanced routing, so that it takes one round.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from cascade_jax.model.dispatch import Places, copies, of_each, weighted_sum
from cascade_jax.model.experts import Experts, chosen_experts
from cascade_jax.model.rounds import Done, in_rounds
from cascade_jax.model.streams import Room, Streams, behind, room, streams, window

Exchange = Literal["ragged", "dense", "gather"]


def further(plan: Streams, tokens_R: Int[Array, " R"], slots_R: Int[Array, " R"]) -> Done:
    """The same answer on every rank of the mesh: all have to take part in a further round, or none."""
    mine = (tokens_R < plan.ahead[0] + plan.size_R).any()
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return Done(tokens_R, slots_R, lax.pmax(mine.astype(jnp.int32), axes) > 0)


Move = Callable[[Array], Array]
Route = Callable[[Streams, Done], tuple[Places, Move, Move, Done]]  # places in the send buffer, there, back


def dense(plan: Streams, done: Done, *, axis: str | None, most: Room) -> tuple[Places, Move, Move, Done]:
    """most.tokens places for each receiver, exchanged whole; without an axis there is one receiver, who is here."""
    first, count, slots = window(plan, done, most)
    C, L = most.tokens, plan.lanes_L.size
    place = jnp.arange(C)
    lanes = plan.lanes_L.at[(plan.start_R + first)[:, None] + place].get(mode="clip")
    lane_P = jnp.where(place < count[:, None], lanes, L).reshape(-1)
    nth = plan.nth_mN - of_each(first[:, None], plan.to_mN)
    sent = plan.live_mN & (nth >= 0) & (nth < of_each(count[:, None], plan.to_mN))
    places = Places(lane_P, jnp.where(sent, plan.to_mN * C + nth, lane_P.size))

    def move(rows: Array) -> Array:
        return rows if axis is None else lax.all_to_all(rows, axis, 0, 0, tiled=True)

    return places, move, move, further(plan, done.tokens_R + count, done.slots_R + slots)


class Slices(NamedTuple):
    """Which rows go from each sender S to each receiver R: where they start in its array, in the other's, how many."""

    source_SR: Int[Array, "S R"]
    target_SR: Int[Array, "S R"]
    size_SR: Int[Array, "S R"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def move_slices(rows: Float[Array, "L D"], slices: Slices, axis: str, here: int, there: int) -> Float[Array, "M D"]:
    """Of `here` rows those of the slices, moved into `there` rows on their receivers, zeros elsewhere."""
    me = lax.axis_index(axis)
    source, target, size = slices
    empty = jnp.zeros((there, *rows.shape[1:]), rows.dtype)
    return lax.ragged_all_to_all(rows, empty, source[me], size[me], target[me], size[:, me], axis_name=axis)


def _move_forward(rows: Array, slices: Slices, axis: str, here: int, there: int) -> tuple[Array, Slices]:
    return move_slices(rows, slices, axis, here, there), slices


def _move_backward(axis: str, here: int, there: int, slices: Slices, dy: Array) -> tuple[Array, None]:
    return move_slices(dy, turned(slices), axis, there, here), None


move_slices.defvjp(_move_forward, _move_backward)


def turned(slices: Slices) -> Slices:
    """The way back."""
    return Slices(slices.target_SR.T, slices.source_SR.T, slices.size_SR.T)


def ragged(plan: Streams, done: Done, *, axis: str, most: Room) -> tuple[Places, Move, Move, Done]:
    """As many rows as there are; a receiver's buffer holds those of all senders, one after the other."""
    first, count, slots = window(plan, done, most)
    source, size, size_slots = jnp.moveaxis(lax.all_gather(jnp.stack([plan.start_R + first, count, slots]), axis), 1, 0)
    slices = Slices(source, jnp.cumsum(size, 0) - size, size)
    L = plan.lanes_L.size
    lane_L = jnp.where(jnp.arange(L) < plan.size_R.sum(), plan.lanes_L, L)
    place = of_each(plan.start_R[:, None], plan.to_mN) + plan.nth_mN
    places = Places(lane_L, jnp.where(plan.live_mN, place, L))
    return (
        places,
        lambda rows: move_slices(rows, slices, axis, L, most.tokens),
        lambda rows: move_slices(rows, turned(slices), axis, most.tokens, L),
        further(plan, done.tokens_R + size.sum(0), done.slots_R + size_slots.sum(0)),
    )


def one_round(
    done: Done,
    args: tuple[Experts, Float[Array, "N D"], Float[Array, "N 2k"]],
    plan: Streams,
    *,
    route: Route,
    axis: str,
    most: int,
) -> tuple[Float[Array, "N D"], Done]:
    """Tokens there, through their experts, sums back. Rows travel in x's dtype. most: slots that one rank computes."""
    experts, x, choices = args
    places, there, back, done = route(plan, done)
    ids, weights = from_choices(there(copies(choices, places)))
    E = experts.up_EDF.shape[0]
    local = ids - lax.axis_index(axis) * E
    local = jnp.where((local >= 0) & (local < E), local, E)
    sums = chosen_experts(experts, there(copies(x, places)), local, weights, most=most)
    return weighted_sum(back(sums.astype(x.dtype)), plan.live_mN.astype(jnp.float32), places), done


def to_choices(ids_kN: Int[Array, "k N"], weights_kN: Float[Array, "k N"]) -> Float[Array, "N 2k"]:
    """Both in one array, because small arrays are slow to send. float32 holds numbers up to 2**24; 0 is no expert."""
    return jnp.concatenate([weights_kN.astype(jnp.float32), (ids_kN + 1).astype(jnp.float32)]).T


def from_choices(choices_N2k: Float[Array, "N 2k"]) -> tuple[Int[Array, "k N"], Float[Array, "k N"]]:
    """ids (-1 for no expert) and weights."""
    weights, numbers = jnp.split(choices_N2k.T, 2)
    return numbers.astype(jnp.int32) - 1, weights


def expert_parallel(
    experts: Experts,
    x_ND: Float[Array, "N D"],
    ids_kN: Int[Array, "k N"],
    weights_kN: Float[Array, "k N"],
    *,
    exchange: Exchange,
    axis: str = "expert",
) -> Float[Array, "N D"]:
    """chosen_experts where rank r of `axis` holds experts r E .. (r + 1) E - 1 of all and N tokens of its own. float32.

    Call it inside jax.shard_map with check_vma=False and all mesh axes manual. The three exchanges give the same:
    "ragged" sends what there is (not on the CPU, not on v5e), "dense" buffers of one size, "gather" every token to
    every rank, for few ranks. Where another axis splits F, the caller sums over it.
    """
    ranks, me = lax.axis_size(axis), lax.axis_index(axis)
    (k, N), E = ids_kN.shape, experts.up_EDF.shape[0]
    choices = to_choices(ids_kN, weights_kN)
    if exchange == "gather":
        x_ND, choices = (lax.all_gather(rows, axis, tiled=True) for rows in (x_ND, choices))
        elsewhere = from_choices(choices)[0] // E != me
        plan = streams(elsewhere.astype(jnp.int32), ranks=1)
    else:
        plan = streams(ids_kN // E, ranks=ranks)
    pair = room(N, ranks=ranks, experts=E, k=k)
    whole = room(N * ranks, ranks=ranks, experts=E, k=k)
    if exchange == "dense":
        route, most = functools.partial(dense, axis=axis, most=pair), ranks * pair.slots
    elif exchange == "ragged":
        plan = behind(plan, axis)
        route, most = functools.partial(ragged, axis=axis, most=whole), whole.slots
    else:
        route, most = functools.partial(dense, axis=None, most=whole), whole.slots
    nothing = jnp.zeros_like(plan.size_R)
    step = functools.partial(one_round, route=route, axis=axis, most=most)
    out = in_rounds(step, Done(nothing, nothing, jnp.bool_(True)), (experts, x_ND, choices), plan)
    if exchange == "gather":
        out = lax.psum_scatter(out, axis, scatter_dimension=0, tiled=True)
    return out
