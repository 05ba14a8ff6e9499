"""The three losses: pure functions of arrays (B rows, T tokens) that return a `Weighted` loss and metrics, all float32.

Everywhere: mask True = the token is trained ("live"); masked positions may hold anything. Only `logprobs_BT` carries a
gradient. Log-ratios are limited to +-20 before they are exponentiated. `band = (low, high)` weighs a token by its ratio
r = exp(trainer - sampler) where low <= r <= high, else by 0; without band every weight is 1. In the RL losses a live
token with a log-prob that is not finite weighs 0 and stays in the denominator, in the metrics too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cascade_jax.types import Weighted

LOG_RATIO_LIMIT = 20.0


def sft_loss(
    logprobs_BT: Float[Array, "B T"],
    *,
    mask_BT: Bool[Array, "B T"],
    row_weight_B: Float[Array, " B"] | None = None,
) -> tuple[Weighted, dict[str, Weighted]]:
    """Cross-entropy: the sum of w * -log p over the sum of w, w being the row's weight, over live tokens."""
    live = jnp.asarray(mask_BT, bool)
    nll = -_only(live, logprobs_BT)
    weight = live.astype(jnp.float32)
    if row_weight_B is not None:
        weight = _fixed(live, jnp.asarray(row_weight_B)[:, None])
    return Weighted((weight * nll).sum(), weight.sum()), {"nll": _mean(jax.lax.stop_gradient(nll), live)}


def grpo_loss(
    logprobs_BT: Float[Array, "B T"],
    *,
    advantages_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    sampler_logprobs_BT: Float[Array, "B T"] | None = None,
    old_logprobs_BT: Float[Array, "B T"] | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    reference_logprobs_BT: Float[Array, "B T"] | None = None,
    kl_coef: float = 0.0,
    band: tuple[float, float] | None = None,
    aggregate: str = "token",
    segments_BT: Int[Array, "B T"] | None = None,
    entropy_BT: Float[Array, "B T"] | None = None,
) -> tuple[Weighted, dict[str, Weighted]]:
    """GRPO (Nemotron-Cascade 2, Eq. 1). Per token -w * A, with the gradient of -w * A * log p: strictly on-policy.

    With `old_logprobs_BT` it is -w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(log p - old), and old
    takes the trainer's place in the band. kl_coef adds the k3 estimate of KL(policy || reference), band or not.
    aggregate "token" divides by live tokens; "sample" averages each row (or segment), then those with live tokens.
    ValueError: unknown aggregate; a band without sampler log-probs; kl_coef > 0 without reference.
    """
    _check_band(band, sampler_logprobs_BT)
    if kl_coef > 0 and reference_logprobs_BT is None:
        raise ValueError(f"kl_coef={kl_coef} needs reference_logprobs_BT; give them, or leave kl_coef at 0.")
    live = jnp.asarray(mask_BT, bool)
    known = _known(live, logprobs_BT, sampler_logprobs_BT, old_logprobs_BT, reference_logprobs_BT)
    logprobs = _only(known, logprobs_BT)
    advantages = _fixed(known, advantages_BT)
    current = jax.lax.stop_gradient(logprobs)
    old = current if old_logprobs_BT is None else _fixed(known, old_logprobs_BT)
    if sampler_logprobs_BT is None:  # then the old policy is the one that sampled
        weight, metrics = _importance(_log_ratio(current, old), band, live=live, known=known)
    else:
        weight, metrics = _importance(_log_ratio(old, _fixed(known, sampler_logprobs_BT)), band, live=live, known=known)

    ratio = jnp.exp(_log_ratio(logprobs, old))
    surrogate = ratio * advantages
    clipped = jnp.zeros_like(live)
    if old_logprobs_BT is not None:
        limited = jnp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantages
        clipped = (limited < surrogate) & (weight > 0)
        surrogate = jnp.minimum(surrogate, limited)
    values = -weight * surrogate
    metrics["clip_fraction"] = _mean(clipped, live)
    if reference_logprobs_BT is not None:
        kl = _only(known, _k3(_log_ratio(_fixed(known, reference_logprobs_BT), logprobs)))
        metrics["reference_kl"] = _mean(jax.lax.stop_gradient(kl), live)
        values = values + kl_coef * kl
    if entropy_BT is not None:
        metrics["entropy"] = _mean(_fixed(live, entropy_BT), live)
    return _aggregate(values, live, aggregate, segments_BT), metrics


def mopd_loss(
    logprobs_BT: Float[Array, "B T"],
    *,
    teacher_logprobs_BT: Float[Array, "B T"],
    sampler_logprobs_BT: Float[Array, "B T"] | None,
    mask_BT: Bool[Array, "B T"],
    band: tuple[float, float] | None = (0.5, 2.0),
    advantage_clip: float | None = None,
    aggregate: str = "sample",
    segments_BT: Int[Array, "B T"] | None = None,
    entropy_BT: Float[Array, "B T"] | None = None,
) -> tuple[Weighted, dict[str, Weighted]]:
    """On-policy distillation (Nemotron-Cascade 2, Eqs. 2-4): -w * a * log p with a = teacher - log p held fixed.

    On the student's own samples the expected gradient is that of the reverse KL(student || teacher). `advantage_clip`
    limits a to +- itself; the metric reverse_kl is the mean of -a before that limit. aggregate and segments as in
    `grpo_loss`. ValueError: unknown aggregate; a band without sampler log-probs.
    """
    _check_band(band, sampler_logprobs_BT)
    live = jnp.asarray(mask_BT, bool)
    known = _known(live, logprobs_BT, teacher_logprobs_BT, sampler_logprobs_BT)
    logprobs = _only(known, logprobs_BT)
    current = jax.lax.stop_gradient(logprobs)
    sampler = current if sampler_logprobs_BT is None else _fixed(known, sampler_logprobs_BT)
    weight, metrics = _importance(_log_ratio(current, sampler), band, live=live, known=known)

    gap = _fixed(known, teacher_logprobs_BT) - current
    advantages = gap if advantage_clip is None else jnp.clip(gap, -advantage_clip, advantage_clip)
    metrics["clip_fraction"] = _mean(jnp.zeros_like(live), live)  # no clip here takes a gradient away
    metrics["reverse_kl"] = _mean(-gap, live)
    if entropy_BT is not None:
        metrics["entropy"] = _mean(_fixed(live, entropy_BT), live)
    return _aggregate(-weight * advantages * logprobs, live, aggregate, segments_BT), metrics


def _check_band(band: tuple[float, float] | None, sampler_logprobs_BT: Array | None) -> None:
    if band is not None and sampler_logprobs_BT is None:
        raise ValueError(f"band={band} needs sampler_logprobs_BT; give them, or set band=None.")


def _known(live: Array, logprobs_BT: Array, *others: Array | None) -> Array:
    """Live tokens whose log-probs are all there. The policy's own -inf was cut by top-p or top-k; its NaN shows."""
    known = live & ~jnp.isneginf(logprobs_BT)
    for other in others:
        if other is not None:
            known &= jnp.isfinite(other)
    return known


def _only(mask: Array, values: Array) -> Array:
    """0 outside of the mask, for the value and for the gradient."""
    return jnp.where(mask, jnp.asarray(values, jnp.float32), 0.0)


def _fixed(mask: Array, values: Array) -> Array:
    return jax.lax.stop_gradient(_only(mask, values))


def _log_ratio(log_p: Array, log_q: Array) -> Array:
    return jnp.clip(log_p - log_q, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _k3(d: Array) -> Array:
    """exp(d) - d - 1, exact near 0."""
    return jnp.expm1(d) - d


def _mean(values: Array, live: Array) -> Weighted:
    return Weighted(values.sum(dtype=jnp.float32), live.sum(dtype=jnp.float32))


def _importance(
    log_ratio: Array, band: tuple[float, float] | None, *, live: Array, known: Array
) -> tuple[Array, dict[str, Weighted]]:
    """(weight of each token, metrics of the ratio trainer / sampler). IcePop: a mask that keeps r, not a clamp."""
    ratio = _only(known, jnp.exp(log_ratio))
    weight, outside = known.astype(jnp.float32), jnp.zeros_like(known)
    if band is not None:
        low, high = band
        outside = known & ((ratio < low) | (ratio > high))
        weight = jnp.where(outside, 0.0, ratio)
    return weight, {
        "ratio_mean": _mean(ratio, live),
        "ratio_max": Weighted(ratio.max(), jnp.ones((), jnp.float32)),
        "out_of_band_fraction": _mean(outside, live),
        "unknown_fraction": _mean(live & ~known, live),
        "sampler_gap_kl": _mean(_k3(log_ratio), live),
    }


def _aggregate(values: Array, live: Array, aggregate: str, segments_BT: Array | None) -> Weighted:
    if aggregate == "token":
        return _mean(values, live)
    if aggregate != "sample":
        raise ValueError(f"aggregate={aggregate!r} is not known; choose 'token' or 'sample'.")
    rows, length = values.shape
    segments = jnp.zeros_like(live, jnp.int32) if segments_BT is None else segments_BT
    samples = jnp.arange(rows)[:, None], segments
    count = jnp.zeros((rows, length + 1), jnp.float32).at[samples].add(live)
    share = jnp.where(live, 1.0 / jnp.maximum(count[samples], 1.0), 0.0)
    return Weighted((values * share).sum(), (count > 0).sum(dtype=jnp.float32))
