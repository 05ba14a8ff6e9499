"""Log-probs of given tokens under the distribution that tokens are drawn from. The sampler and the trainer share it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply
from cascade_jax.types import Params

CHUNK_LOGITS = 2**22  # logits alive at a time: 16 MiB in float32
CHUNK_TOKENS = 512  # but at least so many tokens, or a large head is read from memory more often than it is used


def filtered_logits(
    logits: Float[Array, "*batch V"], *, temperature: float, top_p: float, top_k: int
) -> Float[Array, "*batch V"]:
    """Logits of the sampling distribution, float32: temperature, then top-k, then top-p; what is cut is -inf.

    top-p keeps the smallest set whose mass, after top-k, reaches top_p, and the top token always. Of equal logits the
    lower id goes first. Temperature 0 is greedy: its log-probs are those at temperature 1 with nothing cut.
    """
    logits = _scaled(logits, temperature)
    vocabulary = logits.shape[-1]
    kept = min(top_k, vocabulary) if top_k else vocabulary
    if temperature == 0 or (kept == vocabulary and top_p >= 1):
        return logits
    scores = jax.lax.stop_gradient(logits)
    ranked = jax.lax.top_k(scores, kept)[0]
    count = jnp.full(scores.shape[:-1] + (1,), kept)
    if top_p < 1:
        mass = jnp.cumsum(jax.nn.softmax(ranked, axis=-1), axis=-1)
        count = 1 + (mass[..., :-1] < top_p).sum(axis=-1, keepdims=True)
    last = jnp.take_along_axis(ranked, count - 1, axis=-1)
    above, equal = scores > last, scores == last
    room = count - above.sum(axis=-1, keepdims=True)
    return jnp.where(above | (equal & (jnp.cumsum(equal, axis=-1) <= room)), logits, -jnp.inf)


def target_logprobs(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """(log-prob of each target under `filtered_logits`, entropy at this temperature before any cut), float32.

    A target that the cut removes has log-prob -inf; gradients stay finite.
    """
    filtered = filtered_logits(logits, temperature=temperature, top_p=top_p, top_k=top_k)
    # A comparison, not a gather: its transpose is no scatter, and it works on a vocabulary split over devices.
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    picked = jnp.where(chosen, filtered, 0.0).sum(axis=-1)
    logprobs = picked - jax.nn.logsumexp(filtered, axis=-1)
    whole = _scaled(logits, temperature)
    probs = jax.nn.softmax(whole, axis=-1)
    entropy = -(probs * jnp.where(probs > 0, jax.nn.log_softmax(whole, axis=-1), 0.0)).sum(axis=-1)
    return logprobs, entropy


def token_logprobs(
    config: ModelConfig,
    params: Params,
    hidden_BTD: Float[Array, "B T D"],
    targets_BT: Int[Array, "B T"],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    chunk: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log-probs, entropy) of the tokens that hidden states predict, without a (B, T, V) array in either direction.

    targets_BT[b, t] is what hidden_BTD[b, t] predicts; the caller shifts. `chunk` tokens go through the head at a
    time, None picks a memory-safe number; the backward pass computes their logits again.
    """
    rows, length, width = hidden_BTD.shape
    tokens = rows * length

    def head(hidden: Array, targets: Array) -> tuple[Array, Array]:
        logits = apply.logits(config, params, hidden)
        return target_logprobs(logits, targets, temperature=temperature, top_p=top_p, top_k=top_k)

    hidden, targets = hidden_BTD.reshape(tokens, width), targets_BT.reshape(tokens)
    chunk = max(CHUNK_TOKENS, CHUNK_LOGITS // config.vocab_size) if chunk is None else chunk
    if tokens <= chunk:
        logprobs, entropy = head(hidden, targets)
        return logprobs.reshape(rows, length), entropy.reshape(rows, length)
    steps = -(-tokens // chunk)
    pad = steps * chunk - tokens
    # Each chunk takes every steps-th token, so that rows split over devices keep all of them at work.
    hidden = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(chunk, steps, width).swapaxes(0, 1)
    targets = jnp.pad(targets, (0, pad)).reshape(chunk, steps).swapaxes(0, 1)
    chunks = jax.lax.map(lambda xs: jax.checkpoint(head, prevent_cse=False)(*xs), (hidden, targets))
    logprobs, entropy = (x.swapaxes(0, 1).reshape(-1)[:tokens].reshape(rows, length) for x in chunks)
    return logprobs, entropy


def _scaled(logits: Array, temperature: float) -> Array:
    logits = jnp.asarray(logits, jnp.float32)
    return logits if temperature in (0, 1) else logits / temperature
