"""The kernels at the shapes of the 30B model, for compilation ahead of time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.attention import attention
from pallas_kernels.grouped_matmul import grouped_matmul, padded_width, work_list
from pallas_kernels.ssd import ssd
from pallas_kernels.token_logprob import token_logprob

TOKENS = 8192


def _row(array: Callable, queries: int, keys: int, batch: int) -> tuple:
    q = array((batch, queries, 32 * 128), jnp.bfloat16)  # as the projections give them
    k = array((batch, keys, 2 * 128), jnp.bfloat16)
    ids = array((batch, queries), jnp.int32)
    return q, k, k, ids, array((batch, keys), jnp.int32), ids


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, own: jax.Array, other: jax.Array, places: jax.Array) -> jax.Array:
    q, k, v = (a.reshape(*a.shape[:2], -1, 128) for a in (q, k, v))
    return attention(q, k, v, query_segments_BT=own, key_segments_BS=other, query_positions_BT=places)


def attention_forward(array: Callable) -> tuple:
    return _attend, _row(array, TOKENS, TOKENS, 1)


def attention_decode(array: Callable) -> tuple:
    return _attend, _row(array, 1, TOKENS, 64)


def attention_backward(array: Callable) -> tuple:
    def loss(*arguments: jax.Array) -> jax.Array:
        return _attend(*arguments).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2)), _row(array, TOKENS, TOKENS, 1)


def _mixer(array: Callable) -> tuple:
    x, dt = array((1, TOKENS, 64 * 64), jnp.bfloat16), array((1, TOKENS, 64), jnp.float32)
    B = array((1, TOKENS, 8 * 128), jnp.bfloat16)
    return x, dt, array((64,), jnp.float32), B, B, array((1, TOKENS), jnp.int32)


def _scan(x: jax.Array, dt: jax.Array, A: jax.Array, B: jax.Array, C: jax.Array, segments: jax.Array) -> jax.Array:
    x = x.reshape(*x.shape[:2], 64, 64)
    B, C = (a.reshape(*a.shape[:2], 8, 128) for a in (B, C))
    y, state, _ = ssd(x, dt, A, B, C, segments, chunk=128)
    return y.reshape(*y.shape[:2], -1), state


def ssd_forward(array: Callable) -> tuple:
    return _scan, _mixer(array)


def ssd_backward(array: Callable) -> tuple:
    def loss(*arguments: jax.Array) -> jax.Array:
        y, state = _scan(*arguments)
        return y.astype(jnp.float32).sum() + state.sum()

    return jax.grad(loss, (0, 1, 2, 3, 4)), _mixer(array)


ROWS, EXPERTS, WIDTH = 131072, 128, 2688


def _experts(array: Callable) -> tuple:
    inner = padded_width(1856)
    return (
        array((ROWS, WIDTH), jnp.bfloat16),
        array((EXPERTS, WIDTH, inner), jnp.bfloat16),
        array((EXPERTS, inner, WIDTH), jnp.bfloat16),
        array((EXPERTS,), jnp.int32),
        array((ROWS,), jnp.float32),
    )


def _mlp(x: jax.Array, up: jax.Array, down: jax.Array, sizes: jax.Array, row_weight: jax.Array) -> jax.Array:
    plan = work_list(sizes, rows=ROWS)
    hidden = grouped_matmul(x, up, plan, activation="relu2")
    return grouped_matmul(hidden, down, plan, row_weight_M=row_weight)


def experts_forward(array: Callable) -> tuple:
    return _mlp, _experts(array)


def experts_backward(array: Callable) -> tuple:
    def loss(*arguments: jax.Array) -> jax.Array:
        return _mlp(*arguments).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2, 4)), _experts(array)


VOCABULARY = 131072


def _head(array: Callable) -> tuple:
    hidden, head = array((TOKENS, WIDTH), jnp.bfloat16), array((WIDTH, VOCABULARY), jnp.bfloat16)
    return hidden, head, array((TOKENS,), jnp.int32)


def logprob_forward(array: Callable) -> tuple:
    return token_logprob, _head(array)


def logprob_backward(array: Callable) -> tuple:
    def loss(hidden: jax.Array, head: jax.Array, targets: jax.Array) -> jax.Array:
        logprob, entropy, _ = token_logprob(hidden, head, targets)
        return (logprob + 0.1 * entropy).sum()

    return jax.grad(loss, (0, 1)), _head(array)
