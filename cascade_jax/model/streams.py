"""The plan of expert parallelism: which tokens a rank sends to which, in what order, and how many of them at a time."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cascade_jax.model.dispatch import inverse, of_each, running_sums
from cascade_jax.model.rounds import Done

SLACK = 1.25  # room over what balanced routing needs; routers are balanced by their loss, not exactly
ALIGNED = 1024  # numbers that a TPU keeps in one tile of a vector: rows of a multiple of it are split for nothing


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
        wanted = SLACK * mean + 4 * math.sqrt(mean)
        unit = 8 if wanted < 8 * ALIGNED else ALIGNED
        return min(worst, unit * math.ceil(wanted / unit))

    return Room(enough(reached, tokens), max(local, enough(tokens * k / ranks, tokens * local)))


class Streams(NamedTuple):
    """The tokens that go from here to each of R ranks, in the order of their numbers.

    A token has m lanes, enough for every rank that it goes to; a dead lane goes nowhere. ahead: what ranks before this
    one send to the same receiver, where they share its buffer.
    """

    goes_RN: Bool[Array, "R N"]
    token_RN: Int[Array, "R N"]  # tokens of the stream before this one
    slots_RN: Int[Array, "R N"]  # slots of the stream up to and with this one
    lanes_L: Int[Array, " L"]  # the live lanes of all streams, end to end; L = m N
    start_R: Int[Array, " R"]  # where a stream starts in lanes_L
    size_R: Int[Array, " R"]
    to_mN: Int[Array, "m N"]
    live_mN: Bool[Array, "m N"]
    nth_mN: Int[Array, "m N"]  # token_RN of the rank that a lane goes to
    ahead: tuple[Int[Array, " R"], Int[Array, " R"]]  # tokens, slots


def streams(rank_kN: Int[Array, "k N"], *, ranks: int) -> Streams:
    """The plan of all exchanges. rank_kN: where the token's experts live; `ranks` is nowhere."""
    k, N = rank_kN.shape
    slots_RN = (rank_kN[:, None] == jnp.arange(ranks)[:, None]).sum(0, dtype=jnp.int32)
    goes_RN = slots_RN > 0
    if ranks <= k:
        to_mN, live_mN = jnp.broadcast_to(jnp.arange(ranks)[:, None], (ranks, N)), goes_RN
    else:
        earlier = jnp.tril(jnp.ones((k, k), bool), -1)[..., None]
        again = ((rank_kN[:, None] == rank_kN) & earlier).any(1)
        to_mN, live_mN = jnp.minimum(rank_kN, ranks - 1), (rank_kN < ranks) & ~again
    upto_RN, slots_RN = jnp.split(running_sums(jnp.concatenate([goes_RN, slots_RN])), 2)
    size_R, token_RN = upto_RN[:, -1], upto_RN - goes_RN
    start_R, nothing = jnp.cumsum(size_R) - size_R, jnp.zeros_like(size_R)
    place_mN = of_each(start_R[:, None] + token_RN, to_mN)
    return Streams(
        goes_RN=goes_RN,
        token_RN=token_RN,
        slots_RN=slots_RN,
        lanes_L=inverse(jnp.where(live_mN, place_mN, live_mN.size).reshape(-1), live_mN.size),
        start_R=start_R,
        size_R=size_R,
        to_mN=to_mN,
        live_mN=live_mN,
        nth_mN=of_each(token_RN, to_mN),
        ahead=(nothing, nothing),
    )


def window(plan: Streams, done: Done, most: Room) -> tuple[Int[Array, " R"], Int[Array, " R"], Int[Array, " R"]]:
    """What of each stream goes next, within the room: number of its first token, number of tokens, number of slots."""
    tokens, slots = (before[:, None] for before in plan.ahead)
    tokens_end, slots_end = done.tokens_R + most.tokens, done.slots_R + most.slots
    fits = (tokens + plan.token_RN < tokens_end[:, None]) & (slots + plan.slots_RN <= slots_end[:, None])
    end = (plan.goes_RN & fits).sum(1, dtype=jnp.int32)
    first = jnp.clip(done.tokens_R - plan.ahead[0], 0, plan.size_R)
    last_slot = jnp.where(fits, plan.slots_RN, 0).max(1)
    first_slot = jnp.clip(done.slots_R - plan.ahead[1], 0, plan.slots_RN[:, -1])
    return first, jnp.maximum(end - first, 0), jnp.maximum(last_slot - first_slot, 0)


def behind(plan: Streams, axis: str) -> Streams:
    """The plan of ragged buffers, where the rows of earlier ranks come first."""
    sizes = lax.all_gather(jnp.stack([plan.size_R, plan.slots_RN[:, -1]]), axis)
    before = (jnp.cumsum(sizes, 0) - sizes)[lax.axis_index(axis)]
    return plan._replace(ahead=(before[0], before[1]))
