"""The public function: checks, choice of implementation, what statistics of logits mean, gradients."""

from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Implementation, choose, wrong_platform


class Statistics(NamedTuple):
    """Of the logits z of one device's part of the vocabulary, float32."""

    top_T: Float[Array, " T"]  # the largest
    mass_T: Float[Array, " T"]  # sum of exp(z - top)
    moment_T: Float[Array, " T"]  # sum of exp(z - top) (z - top)
    logits_TJ: Float[Array, "T J"]  # z of the ids, 0 where an id is not in this part


class Slopes(NamedTuple):
    """The gradient of the loss by z: placed[ids] - exp(z - norm) (constant + linear z), float32."""

    norm_T: Float[Array, " T"]
    constant_T: Float[Array, " T"]
    linear_T: Float[Array, " T"]
    placed_TJ: Float[Array, "T J"]


def token_logprob(
    hidden_TD: Float[Array, "T D"],
    head_DV: Float[Array, "D V"],
    targets_T: Int[Array, " T"],
    *,
    temperature: float = 1.0,
    other_ids_TK: Int[Array, "T K"] | None = None,
    vocabulary_axis: str | None = None,
    implementation: Implementation | None = None,
) -> tuple[Float[Array, " T"], Float[Array, " T"], Float[Array, "T K"] | None]:
    """(log-prob of each target, entropy, log-probs of other ids or None) of softmax(hidden head / temperature).

    Neither direction makes a (T, V) array in float32: the backward pass computes logits again, part by part. Gradients
    reach hidden and head from all three results, which are float32, as are all sums.

    other_ids_TK: say a teacher's most likely tokens; an id may come twice, or be a target.
    vocabulary_axis: inside of jax.shard_map(check_vma=False), the mesh axis that splits the head's columns in equal
    parts, in order. Ids then count over the whole vocabulary, and results are the same on all of the axis.
    implementation: None takes the first that supports the call.

    ValueError where shapes or the named implementation do not fit, or the temperature is not above 0. An id that is
    not in the vocabulary gets a log-prob as if its logit were 0, without an error. The gradient follows from
    d logp_t = dz_t - sum p dz and d entropy = -sum p (log p + entropy) dz.
    """
    _check(hidden_TD, head_DV, targets_T, temperature, other_ids_TK)
    ids_TJ = targets_T[:, None]
    if other_ids_TK is not None:
        ids_TJ = jnp.concatenate([ids_TJ, other_ids_TK], axis=1)
    name = choose(
        "token_logprob",
        implementation,
        {
            "pallas_tpu": lambda: wrong_platform("tpu") or _backend("pallas_tpu").obstacle(hidden_TD, ids_TJ),
            "pallas_gpu": lambda: wrong_platform("gpu") or _backend("pallas_gpu").obstacle(hidden_TD, ids_TJ),
            "xla": lambda: None,
            "reference": lambda: None,
        },
    )
    logprobs_TJ, entropy_T = logprobs(hidden_TD, head_DV, ids_TJ, float(temperature), vocabulary_axis, _backend(name))
    return logprobs_TJ[:, 0], entropy_T, None if other_ids_TK is None else logprobs_TJ[:, 1:]


def _check(hidden: Array, head: Array, targets: Array, temperature: float, others: Array | None) -> None:
    if hidden.ndim != 2 or head.ndim != 2 or hidden.shape[1] != head.shape[0]:
        raise ValueError(
            f"token_logprob: hidden states {hidden.shape} do not fit a head {head.shape}; give (T, D), (D, V)"
        )
    if targets.shape != hidden.shape[:1] or (others is not None and others.shape[:-1] != targets.shape):
        raise ValueError(
            f"token_logprob: {hidden.shape[0]} hidden states, targets {targets.shape}"
            f"{'' if others is None else f', other ids {others.shape}'}; give (T,) and (T, K)"
        )
    if not temperature > 0:
        raise ValueError(f"token_logprob: temperature {temperature} is not above 0; greedy log-probs are those at 1")


def _backend(name: Implementation) -> ModuleType:
    """The module that has statistics and gradients. Imported here: a CPU never loads a kernel language."""
    if name == "pallas_tpu":
        from pallas_kernels.token_logprob import tpu as module
    elif name == "pallas_gpu":
        from pallas_kernels.token_logprob import gpu as module
    elif name == "xla":
        from pallas_kernels.token_logprob import xla as module
    else:
        from pallas_kernels.token_logprob import reference as module
    return module


def logprobs(
    hidden: Array, head: Array, ids: Array, temperature: float, axis: str | None, backend: ModuleType
) -> tuple[Array, Array]:
    """Log-probs (T, J) of all ids, the entropy, and their gradients by a back-end's statistics and gradients."""

    @jax.custom_vjp
    def run(hidden: Array, head: Array, ids: Array) -> tuple[Array, Array]:
        return forward(hidden, head, ids)[0]

    def forward(hidden: Array, head: Array, ids: Array) -> tuple[tuple[Array, Array], tuple]:
        local = ids if axis is None else ids - jax.lax.axis_index(axis) * head.shape[1]
        found = backend.statistics(hidden, head.astype(hidden.dtype), local, temperature)
        whole = found if axis is None else _over_axis(found, axis)
        norm = whole.top_T + jnp.log(whole.mass_T)
        entropy = jnp.log(whole.mass_T) - whole.moment_T / whole.mass_T
        return (whole.logits_TJ - norm[:, None], entropy), (hidden, head, local, norm, entropy)

    def backward(saved: tuple, slopes: tuple[Array, Array]) -> tuple[Array, Array, None]:
        hidden, head, local, norm, entropy = saved
        d_logprobs, d_entropy = slopes if axis is None else jax.lax.psum(slopes, axis)  # what autodiff makes of psum
        constant = d_logprobs.sum(1) + d_entropy * (entropy - norm)
        of_logits = Slopes(norm, constant, d_entropy, d_logprobs)
        d_hidden, d_head = backend.gradients(hidden, head.astype(hidden.dtype), local, of_logits, temperature)
        return d_hidden.astype(hidden.dtype), d_head.astype(head.dtype), None

    run.defvjp(forward, backward)
    return run(hidden, head, ids)


def _over_axis(part: Statistics, axis: str) -> Statistics:
    """The statistics of the whole vocabulary."""
    top = jax.lax.pmax(part.top_T, axis)
    lower = part.top_T - top
    scale = jnp.exp(lower)
    mass, moment = scale * part.mass_T, scale * (part.moment_T + lower * part.mass_T)
    return Statistics(top, *jax.lax.psum((mass, moment, part.logits_TJ), axis))
