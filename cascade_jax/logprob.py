"""Log-probs of given tokens under the distribution that tokens are drawn from. The sampler and the trainer share it."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.config import ModelConfig
from cascade_jax.mesh import TOKENS
from cascade_jax.model import apply, axes
from cascade_jax.model.linear import matmul32
from cascade_jax.types import Params
from pallas_kernels.token_logprob import token_logprob

SIGN = np.uint32(1 << 31)
CHUNK_TOKENS = 512  # float32 logits of a chunk: 1 MiB for a vocabulary of 512, 256 MiB for one of 131,072


def filtered_logits(
    logits: Float[Array, "*batch V"], *, temperature: float, top_p: float, top_k: int
) -> Float[Array, "*batch V"]:
    """Logits of the sampling distribution, float32: temperature, then top-k, then top-p; what is cut is -inf.

    top-p keeps the smallest set whose mass, after top-k, reaches top_p, and the top token always. Of equal logits the
    lower id goes first. Temperature 0 is greedy: its log-probs are those at temperature 1 with nothing cut.
    """
    logits = _scaled(logits, temperature)
    if temperature == 0:
        return logits
    if 0 < top_k < logits.shape[-1]:
        logits = jnp.where(_best(logits, jnp.ones_like(logits), top_k), logits, -jnp.inf)
    if top_p < 1:
        logits = jnp.where(_best(logits, jax.nn.softmax(logits, axis=-1), top_p), logits, -jnp.inf)
    return logits


def _best(
    scores: Float[Array, "*batch V"], weights: Float[Array, "*batch V"], enough: float
) -> Bool[Array, "*batch V"]:
    """True for the best-scored entries, as many as it takes for their weights to reach `enough`, and at least one.

    The lowest score among them is found bit by bit: 32 sums are cheaper than a sort, on a CPU some ten times.
    """
    scores, weights = jax.lax.stop_gradient((scores, weights))
    bits = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    order = jnp.where(bits >= SIGN, ~bits, bits | SIGN)  # unsigned integers in the order of the scores

    def set_bit(i: Int[Array, ""], lowest: Array) -> Array:
        higher = lowest | (SIGN >> i.astype(jnp.uint32))
        reached = jnp.where(order >= higher, weights, 0.0).sum(axis=-1, keepdims=True) >= enough
        return jnp.where(reached, higher, lowest)

    lowest = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros((*scores.shape[:-1], 1), jnp.uint32))
    above, equal = jnp.where(order > lowest, weights, 0.0), jnp.where(order == lowest, weights, 0.0)
    before = above.sum(axis=-1, keepdims=True) + jnp.cumsum(equal, axis=-1) - equal
    return (order > lowest) | ((order == lowest) & (before < enough))


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
    split, first = "tensor", axes.index("tensor") * logits.shape[-1]
    if top_p < 1 or top_k > 0:  # a cut needs the whole vocabulary
        logits, split, first = axes.whole(logits, "tensor", dim=logits.ndim - 1), "", 0
    filtered = filtered_logits(logits, temperature=temperature, top_p=top_p, top_k=top_k)
    # A comparison, not a gather: its transpose is no scatter, and it works on a vocabulary split over devices.
    chosen = first + jnp.arange(logits.shape[-1]) == targets[..., None]
    logprobs = axes.total(jnp.where(chosen, _log_softmax(filtered, split), 0.0).sum(axis=-1), split)
    log_probs = _log_softmax(_scaled(logits, temperature), split)
    probs = jnp.exp(log_probs)
    entropy = -axes.total((probs * jnp.where(probs > 0, log_probs, 0.0)).sum(axis=-1), split)
    return logprobs, entropy


def _log_softmax(logits: Float[Array, "*batch V"], split: str) -> Float[Array, "*batch V"]:
    """Over a vocabulary that the mesh axis `split` may share out."""
    if axes.size(split) == 1:
        return jax.nn.log_softmax(logits, axis=-1)
    top = jax.lax.pmax(jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)), split)
    return logits - top - jnp.log(axes.total(jnp.exp(logits - top).sum(axis=-1, keepdims=True), split))


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
    if temperature != 0 and (top_p < 1 or top_k > 0):
        settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        of_tokens, chunk = functools.partial(_cut_logprobs, **settings), chunk or CHUNK_TOKENS
    else:
        of_tokens, chunk = functools.partial(_whole_logprobs, temperature=temperature or 1.0), chunk or targets_BT.size
    run = functools.partial(_in_chunks, of_tokens, chunk)
    return apply.over_mesh(
        run, config, params, hidden_BTD, targets_BT, in_specs=(TOKENS, TOKENS), out_specs=(TOKENS, TOKENS)
    )


OfTokens = Callable[[Array, Array, Array], tuple[Array, Array]]  # hidden (N, D), head (D, V), targets (N,)


def _whole_logprobs(hidden: Array, head: Array, targets: Array, *, temperature: float) -> tuple[Array, Array]:
    """Of the whole distribution: part by part of the vocabulary."""
    axis = "tensor" if axes.size("tensor") > 1 else None
    logprobs, entropy, _ = token_logprob(hidden, head, targets, temperature=temperature, vocabulary_axis=axis)
    return logprobs, entropy


def _cut_logprobs(hidden: Array, head: Array, targets: Array, **settings: float) -> tuple[Array, Array]:
    """A cut looks at all logits of a token at once; they are computed again for the gradient."""

    def run(hidden: Array, targets: Array) -> tuple[Array, Array]:
        return target_logprobs(matmul32(hidden, head), targets, **settings)

    return jax.checkpoint(run, prevent_cse=False)(hidden, targets)


def _in_chunks(
    of_tokens: OfTokens,
    chunk: int,
    config: ModelConfig,
    params: Params,
    hidden_BTD: Float[Array, "B T D"],
    targets_BT: Int[Array, "B T"],
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    rows, length, width = hidden_BTD.shape
    tokens, head = rows * length, apply.head(config, params)
    hidden, targets = hidden_BTD.reshape(tokens, width), targets_BT.reshape(tokens)
    if tokens <= chunk:
        logprobs, entropy = of_tokens(hidden, head, targets)
        return logprobs.reshape(rows, length), entropy.reshape(rows, length)
    steps = -(-tokens // chunk)
    pad = steps * chunk - tokens
    # Each chunk takes every steps-th token, so that rows split over devices keep all of them at work.
    hidden = jnp.pad(hidden, ((0, pad), (0, 0))).reshape(chunk, steps, width).swapaxes(0, 1)
    targets = jnp.pad(targets, (0, pad)).reshape(chunk, steps).swapaxes(0, 1)
    chunks = jax.lax.map(lambda xs: of_tokens(xs[0], head, xs[1]), (hidden, targets))
    logprobs, entropy = (x.swapaxes(0, 1).reshape(-1)[:tokens].reshape(rows, length) for x in chunks)
    return logprobs, entropy


def _scaled(logits: Array, temperature: float) -> Array:
    logits = jnp.asarray(logits, jnp.float32)
    return logits if temperature in (0, 1) else logits / temperature
