"""The plan of expert parallelism: which tokens a rank sends to which, in what order, and how many of them at a time."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cascade_jax.model.dispatch import inverse, running_sums, slots_of
from cascade_jax.model.rounds import Done

SLACK = 1.25  # room over what balanced routing needs; routers are balanced by their loss, not exactly


class Room(NamedTuple):
    """What one round takes of a stream at the most: tokens, and slots, which are (token, expert) pairs."""

    tokens: int
    slots: int


def room(tokens: int, *, ranks: int, experts: int, k: int) -> Room:
    """Room for one rank's part of `tokens` tokens of which each chooses k experts, `experts` of them on each rank.

    Balanced routing needs the mean and a few standard deviations; nothing needs more than the worst case.
    """
    total, local = ranks * experts, min(k, experts)
    reached = tokens * (1 - math.comb(total - experts, k) / math.comb(total, k))

    def enough(mean: float, worst: int) -> int:
        return min(worst, 8 * math.ceil((SLACK * mean + 4 * math.sqrt(mean)) / 8))

    return Room(enough(reached, tokens), max(local, enough(tokens * k / ranks, tokens * local)))


class Streams(NamedTuple):
    """The tokens that go from here to each of R ranks, in the order of their numbers.

    A token has m lanes, enough for every rank that it goes to; a dead lane goes nowhere. ahead: what ranks before this
    one send to the same receiver, where they share its buffer.
    """

    goes_NR: Bool[Array, "N R"]
    token_NR: Int[Array, "N R"]  # tokens of the stream before this one
    slots_NR: Int[Array, "N R"]  # slots of the stream up to and with this one
    lanes_L: Int[Array, " L"]  # the live lanes of all streams, end to end; L = N m
    start_R: Int[Array, " R"]  # where a stream starts in lanes_L
    size_R: Int[Array, " R"]
    to_Nm: Int[Array, "N m"]
    live_Nm: Bool[Array, "N m"]
    ahead: tuple[Int[Array, " R"], Int[Array, " R"]]  # tokens, slots


def streams(rank_Nk: Int[Array, "N k"], *, ranks: int) -> Streams:
    """The plan of all exchanges. rank_Nk: where the token's experts live; `ranks` is nowhere."""
    N, k = rank_Nk.shape
    slots_NR = (rank_Nk[..., None] == jnp.arange(ranks)).sum(1, dtype=jnp.int32)
    goes_NR = slots_NR > 0
    if ranks <= k:
        to_Nm, live_Nm = jnp.broadcast_to(jnp.arange(ranks), (N, ranks)), goes_NR
    else:
        earlier = jnp.tril(jnp.ones((k, k), bool), -1)
        again = ((rank_Nk[:, :, None] == rank_Nk[:, None]) & earlier).any(-1)
        to_Nm, live_Nm = jnp.minimum(rank_Nk, ranks - 1), (rank_Nk < ranks) & ~again
    upto_NR, slots_NR = jnp.split(running_sums(jnp.concatenate([goes_NR, slots_NR], axis=1)), 2, axis=1)
    size_R, token_NR = upto_NR[-1], upto_NR - goes_NR
    start_R, nothing = jnp.cumsum(size_R) - size_R, jnp.zeros_like(size_R)
    place_Nm = start_R[to_Nm] + jnp.take_along_axis(token_NR, to_Nm, 1)
    return Streams(
        goes_NR=goes_NR,
        token_NR=token_NR,
        slots_NR=slots_NR,
        lanes_L=inverse(slots_of(jnp.where(live_Nm, place_Nm, live_Nm.size)), live_Nm.size),
        start_R=start_R,
        size_R=size_R,
        to_Nm=to_Nm,
        live_Nm=live_Nm,
        ahead=(nothing, nothing),
    )


def window(plan: Streams, done: Done, most: Room) -> tuple[Int[Array, " R"], Int[Array, " R"], Int[Array, " R"]]:
    """What of each stream goes next, within the room: number of its first token, number of tokens, number of slots."""
    tokens, slots = plan.ahead
    fits = (tokens + plan.token_NR < done.tokens_R + most.tokens) & (slots + plan.slots_NR <= done.slots_R + most.slots)
    end = (plan.goes_NR & fits).sum(0, dtype=jnp.int32)
    first = jnp.clip(done.tokens_R - tokens, 0, plan.size_R)
    slots_end = jnp.where(fits, plan.slots_NR, 0).max(0)
    slots_first = jnp.clip(done.slots_R - slots, 0, plan.slots_NR[-1])
    return first, jnp.maximum(end - first, 0), jnp.maximum(slots_end - slots_first, 0)


def behind(plan: Streams, axis: str) -> Streams:
    """The plan of ragged buffers, where the rows of earlier ranks come first."""
    sizes = lax.all_gather(jnp.stack([plan.size_R, plan.slots_NR[-1]]), axis)
    before = (jnp.cumsum(sizes, 0) - sizes)[lax.axis_index(axis)]
    return plan._replace(ahead=(before[0], before[1]))
