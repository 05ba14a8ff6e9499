"""Work in rounds: nearly always one is enough, and the rest is there so that the worst case is right too."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Done(NamedTuple):
    """How far the rounds have come in each of R streams, and whether any rank has more to do: the same on all ranks."""

    tokens_R: Int[Array, " R"]
    slots_R: Int[Array, " R"]
    more: Bool[Array, ""]


Step = Callable[[Done, Any, Any], tuple[Array, Done]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_rounds(step: Step, done: Done, args: Any, plan: Any) -> Array:
    """The sum of what step(done, args, plan) -> (out, done) gives, once and then for as long as there is more.

    The first round keeps what its gradient needs; further ones are computed again for theirs, so memory does not grow
    with their number. step closes over nothing traced; gradients go to args alone.
    """
    out, done = step(done, args, plan)
    return _further(step, done, out, args, plan)


def _further(step: Step, done: Done, out: Array, args: Any, plan: Any) -> Array:
    def one(carry: tuple[Done, Array]) -> tuple[Done, Array]:
        done, total = carry
        out, done = step(done, args, plan)
        return done, total + out

    return jax.lax.while_loop(lambda carry: carry[0].more, one, (done, out))[1]


def _forward(step: Step, done: Done, args: Any, plan: Any) -> tuple[Array, tuple[Any, Done, Any, Any]]:
    out, pull, done = jax.vjp(lambda args: step(done, args, plan), args, has_aux=True)
    return _further(step, done, out, args, plan), (pull, done, args, plan)


def _backward(step: Step, saved: tuple[Any, Done, Any, Any], dout: Array) -> tuple[None, Any, None]:
    pull, done, args, plan = saved

    def one(carry: tuple[Done, Any]) -> tuple[Done, Any]:
        done, total = carry
        _, pull, done = jax.vjp(lambda args: step(done, args, plan), args, has_aux=True)
        return done, jax.tree.map(jnp.add, total, pull(dout)[0])

    grads = jax.lax.while_loop(lambda carry: carry[0].more, one, (done, pull(dout)[0]))[1]
    return None, grads, None


in_rounds.defvjp(_forward, _backward)
