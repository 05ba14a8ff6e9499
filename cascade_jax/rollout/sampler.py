"""Continuations, drawn on the device: one prefill per prompt, then a decode step per token for all samples at once."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from cascade_jax.config import ModelConfig
from cascade_jax.logprob import filtered_logits, target_logprobs
from cascade_jax.model import apply, cache
from cascade_jax.types import Params


class Drawn(NamedTuple):
    """N = max_tokens. Entry n of a sample counts where n < its length, the rest is 0. The stop id counts too."""

    ids_PGN: Int[Array, "P G N"]
    logprobs_PGN: Float[Array, "P G N"]  # of the distribution that was sampled from; temperature 1 where greedy
    lengths_PG: Int[Array, "P G"]
    stopped_PG: Bool[Array, "P G"]  # a stop id ended the sample, not the token limit


@partial(
    jax.jit,
    static_argnames=("config", "samples_per_prompt", "max_tokens", "temperature", "top_p", "top_k", "stop_ids"),
)
def sample(
    config: ModelConfig,
    params: Params,
    ids_PT: Int[Array, "P T"],
    lengths_P: Int[Array, "P"],
    *,
    key: Key[Array, ""],
    index_P: Int[Array, "P"],
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
    rows = prompts * samples_per_prompt
    keys_B = jax.vmap(
        lambda index: jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(key, index)))(
            jnp.arange(samples_per_prompt)
        )
    )(index_P).reshape(rows)
    draw = partial(_draw, temperature=temperature, top_p=top_p, top_k=top_k)

    empty = apply.empty_cache(config, prompts, bucket + max_tokens)
    logits_PV, cache_P = apply.prefill(config, params, ids_PT, jnp.maximum(lengths_P, 1), empty)
    cache_B = cache.repeat(cache_P, samples_per_prompt)
    token_B, logprob_B = draw(jnp.repeat(logits_PV, samples_per_prompt, axis=0), keys_B, 0)

    live_B = jnp.repeat(lengths_P > 0, samples_per_prompt)
    state = _State(
        step=jnp.int32(0),
        cache=cache_B,
        token_B=token_B,
        logprob_B=logprob_B,
        live_B=live_B,
        ids_NB=jnp.zeros((max_tokens, rows), jnp.int32),
        logprobs_NB=jnp.zeros((max_tokens, rows), jnp.float32),
        lengths_B=jnp.zeros(rows, jnp.int32),
        stopped_B=jnp.zeros(rows, bool),
    )
    state = _record(state, stop_ids)

    def another(state: _State) -> Bool[Array, ""]:
        return (state.step < max_tokens) & state.live_B.any()

    def advance(state: _State) -> _State:
        logits_BV, cache_B = apply.decode(config, params, state.token_B, state.cache)
        token_B, logprob_B = draw(logits_BV, keys_B, state.step)
        return _record(state._replace(cache=cache_B, token_B=token_B, logprob_B=logprob_B), stop_ids)

    state = jax.lax.while_loop(another, advance, state)
    shape = (prompts, samples_per_prompt)
    return Drawn(
        ids_PGN=state.ids_NB.T.reshape(*shape, max_tokens),
        logprobs_PGN=state.logprobs_NB.T.reshape(*shape, max_tokens),
        lengths_PG=state.lengths_B.reshape(shape),
        stopped_PG=state.stopped_B.reshape(shape),
    )


class _State(NamedTuple):
    """What the decoding loop carries. `token_B` was drawn last; rows that are not live go on decoding, unrecorded."""

    step: Int[Array, ""]  # tokens recorded so far
    cache: cache.Cache
    token_B: Int[Array, "B"]
    logprob_B: Float[Array, "B"]
    live_B: Bool[Array, "B"]
    ids_NB: Int[Array, "N B"]  # time first: one contiguous write per step
    logprobs_NB: Float[Array, "N B"]
    lengths_B: Int[Array, "B"]
    stopped_B: Bool[Array, "B"]


def _record(state: _State, stop_ids: tuple[int, ...]) -> _State:
    """The state after the tokens drawn last are written down."""
    live_B = state.live_B
    stop_B = live_B & jnp.isin(state.token_B, jnp.array(stop_ids, jnp.int32))
    return state._replace(
        step=state.step + 1,
        ids_NB=state.ids_NB.at[state.step].set(jnp.where(live_B, state.token_B, 0)),
        logprobs_NB=state.logprobs_NB.at[state.step].set(jnp.where(live_B, state.logprob_B, 0.0)),
        lengths_B=state.lengths_B + live_B,
        stopped_B=state.stopped_B | stop_B,
        live_B=live_B & ~stop_B,
    )


def _draw(
    logits_BV: Float[Array, "B V"],
    keys_B: Key[Array, "B"],
    step: Int[Array, ""] | int,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """One token per row, by the Gumbel-max trick (the largest logit at temperature 0), and its log-prob."""
    filters = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    filtered_BV = filtered_logits(logits_BV, **filters)
    if temperature == 0:
        token_B = jnp.argmax(filtered_BV, axis=-1)
    else:
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, step)
        token_B = jax.vmap(jax.random.categorical)(keys_B, filtered_BV)
    # The trainer's own function, so that the ratio between the two is 1 up to rounding.
    logprob_B, _ = target_logprobs(logits_BV, token_B, **filters)
    return token_B, logprob_B
