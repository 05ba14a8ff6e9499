"""Continuations, drawn on the device: a prefill that the samples of a prompt share, then one step per token for all.

Three programs, because they are needed in different numbers: the prefill for each bucket of prompt lengths, the spread
of its caches for each batch shape, and the decoding loop for each number of rows and sampling setting.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from cascade_jax.config import ModelConfig
from cascade_jax.logprob import filtered_logits, target_logprobs
from cascade_jax.mesh import ROLLOUT_AXES, batch_shares
from cascade_jax.model import apply
from cascade_jax.model.cache import Cache, grow, repeat
from cascade_jax.processes import on_host
from cascade_jax.types import Params

PREFILL_PROMPTS = 16  # at a time: bounds memory, and one program serves every number of prompts


class Drawn(NamedTuple):
    """NumPy, N = max_tokens. Entry n of a sample counts where n < its length, the rest is 0. The stop id counts too."""

    ids_PGN: Int[np.ndarray, "P G N"]
    logprobs_PGN: Float[np.ndarray, "P G N"]  # of the distribution that was sampled from; temperature 1 where greedy
    lengths_PG: Int[np.ndarray, "P G"]
    stopped_PG: Bool[np.ndarray, "P G"]  # a stop id ended the sample, not the token limit


def sample(
    config: ModelConfig,
    params: Params,
    ids_PT: Int[np.ndarray, "P T"],
    lengths_P: Int[np.ndarray, " P"],
    *,
    key: Key[Array, ""],
    index_P: Int[np.ndarray, " P"],
    samples_per_prompt: int,
    max_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    stop_ids: tuple[int, ...] = (),
) -> Drawn:
    """Samples of right-padded prompts. A prompt of length 0 only fills the batch: its samples are empty.

    The randomness of a token comes from (key, index_P of its prompt, sample, token) alone, so that neither the other
    rows of the batch nor its padding change what is drawn.
    """
    prompts, bucket = ids_PT.shape
    G = samples_per_prompt
    shares = batch_shares(ROLLOUT_AXES)
    at_once = -(-PREFILL_PROMPTS // shares) * shares
    caches = [
        prefill(config, params, ids_PT[start : start + at_once], lengths_P[start : start + at_once])
        for start in range(0, prompts, at_once)
    ]
    last_P = ids_PT[np.arange(prompts), np.maximum(lengths_P - 1, 0)]
    state = decode(
        config,
        params,
        spread(caches, times=G, capacity=bucket + max_tokens),
        last_B=np.repeat(last_P, G),
        live_B=np.repeat(lengths_P > 0, G),
        keys_B=row_keys(key, index_P, samples=G),
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_ids=stop_ids,
    )
    ids_NB, logprobs_NB, lengths_B, stopped_B = on_host(
        (state.ids_NB, state.logprobs_NB, state.lengths_B, state.stopped_B)
    )
    return Drawn(
        ids_PGN=ids_NB.T.reshape(prompts, G, max_tokens),
        logprobs_PGN=logprobs_NB.T.reshape(prompts, G, max_tokens),
        lengths_PG=lengths_B.reshape(prompts, G),
        stopped_PG=stopped_B.reshape(prompts, G),
    )


@partial(jax.jit, static_argnames="config")
def prefill(config: ModelConfig, params: Params, ids_PT: Int[Array, "P T"], lengths_P: Int[Array, " P"]) -> Cache:
    """The prompts' caches without their last tokens, with which decoding starts."""
    empty = apply.empty_cache(config, *ids_PT.shape)
    return apply.prefill(config, params, ids_PT, jnp.maximum(lengths_P - 1, 0), empty)[1]


@partial(jax.jit, static_argnames=("times", "capacity"))
def spread(caches: list[Cache], *, times: int, capacity: int) -> Cache:
    """One cache with `times` rows for every prompt, and room for `capacity` tokens in each."""
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *caches)
    return grow(repeat(joined, times), capacity)


@partial(jax.jit, static_argnames="samples")
def row_keys(key: Key[Array, ""], index_P: Int[Array, " P"], *, samples: int) -> Key[Array, " B"]:
    """A key for every sample of every prompt."""
    keys_P = jax.vmap(jax.random.fold_in, (None, 0))(key, index_P)
    keys_PG = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys_P, jnp.arange(samples))
    return keys_PG.reshape(-1)


class State(NamedTuple):
    """What the decoding loop carries. Rows that are not live go on decoding, unrecorded."""

    cache: Cache
    step: Int[Array, ""]  # tokens recorded so far
    token_B: Int[Array, " B"]  # the last one, not yet in the cache
    live_B: Bool[Array, " B"]
    ids_NB: Int[Array, "N B"]  # time first: one contiguous write per step
    logprobs_NB: Float[Array, "N B"]
    lengths_B: Int[Array, " B"]
    stopped_B: Bool[Array, " B"]


@partial(
    jax.jit,
    static_argnames=("config", "max_tokens", "temperature", "top_p", "top_k", "stop_ids"),
    donate_argnames="cache_B",
)
def decode(
    config: ModelConfig,
    params: Params,
    cache_B: Cache,
    *,
    last_B: Int[Array, " B"],
    live_B: Bool[Array, " B"],
    keys_B: Key[Array, " B"],
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    stop_ids: tuple[int, ...],
) -> State:
    """Tokens after `last_B` until every live row has stopped, at most `max_tokens`. The cache is updated in place."""
    filters = {"temperature": temperature, "top_p": top_p, "top_k": top_k}

    def advance(state: State) -> State:
        logits_BV, cache = apply.decode(config, params, state.token_B, state.cache)
        step_keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, state.step)
        token_B, logprob_B = draw(logits_BV, step_keys_B, **filters)
        stop_B = state.live_B & jnp.isin(token_B, jnp.array(stop_ids, jnp.int32))
        return State(
            cache=cache,
            step=state.step + 1,
            token_B=token_B,
            live_B=state.live_B & ~stop_B,
            ids_NB=state.ids_NB.at[state.step].set(jnp.where(state.live_B, token_B, 0)),
            logprobs_NB=state.logprobs_NB.at[state.step].set(jnp.where(state.live_B, logprob_B, 0.0)),
            lengths_B=state.lengths_B + state.live_B,
            stopped_B=state.stopped_B | stop_B,
        )

    rows = last_B.shape[0]
    start = State(
        cache=cache_B,
        step=jnp.int32(0),
        token_B=last_B,
        live_B=live_B,
        ids_NB=jnp.zeros((max_tokens, rows), jnp.int32),
        logprobs_NB=jnp.zeros((max_tokens, rows), jnp.float32),
        lengths_B=jnp.zeros(rows, jnp.int32),
        stopped_B=jnp.zeros(rows, bool),
    )
    return jax.lax.while_loop(lambda state: (state.step < max_tokens) & state.live_B.any(), advance, start)


def draw(
    logits_BV: Float[Array, "B V"], keys_B: Key[Array, " B"], *, temperature: float, top_p: float, top_k: int
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """One token per row, by the Gumbel-max trick (the largest logit at temperature 0), and its log-prob."""
    filters = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    scores_BV = filtered_logits(logits_BV, **filters)
    if temperature > 0:
        noise_BV = jax.vmap(partial(jax.random.gumbel, shape=logits_BV.shape[-1:]))(keys_B)
        scores_BV = jax.lax.optimization_barrier(scores_BV + noise_BV)  # an argmax fused with the noise is 3 x slower
    token_B = jnp.argmax(scores_BV, axis=-1)
    # The trainer's own function, so that the ratio between the two is 1 up to rounding.
    logprob_B, _ = target_logprobs(logits_BV, token_B, **filters)
    return token_B, logprob_B
