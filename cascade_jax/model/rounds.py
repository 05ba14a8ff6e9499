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
    """The sum of what step(done, args, plan) -> (out, done) gives, for as long as there is more.

    Each round is computed again for its gradient, so memory does not grow with their number, and one program serves
    all of them. step closes over nothing traced; gradients go to args alone.
    """

    def one(done: Done) -> tuple[Done, Array]:
        out, done = step(done, args, plan)
        return done, out

    return _summed(one, done)


def _forward(step: Step, done: Done, args: Any, plan: Any) -> tuple[Array, tuple[Done, Any, Any]]:
    return in_rounds(step, done, args, plan), (done, args, plan)


def _backward(step: Step, saved: tuple[Done, Any, Any], dout: Array) -> tuple[None, Any, None]:
    done, args, plan = saved

    def one(done: Done) -> tuple[Done, Any]:
        _, pull, done = jax.vjp(lambda args: step(done, args, plan), args, has_aux=True)
        return done, pull(dout)[0]

    return None, _summed(one, done), None


def _summed(one: Callable[[Done], tuple[Done, Any]], done: Done) -> Any:
    def add(carry: tuple[Done, Any]) -> tuple[Done, Any]:
        done, found = one(carry[0])
        return done, jax.tree.map(jnp.add, carry[1], found)

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, done)[1])
    return jax.lax.while_loop(lambda carry: carry[0].more, add, (done, nothing))[1]


in_rounds.defvjp(_forward, _backward)
