"""Rewards of a group -> advantages, and which groups carry a signal. Pure functions, safe under jit."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def group_advantages(
    rewards_PG: Float[Array, "P G"],
    *,
    mask_PG: Bool[Array, "P G"] | None = None,
    normalize_std: bool = True,
    leave_one_out: bool = False,
    eps: float = 1e-6,
) -> Float[Array, "P G"]:
    """A = (r - mean) / (std + eps) within each prompt's group, float32 (Nemotron-Cascade 2, section 4.1.2).

    std is the population one over the samples that take part. `leave_one_out` takes the mean of the others instead
    and leaves std alone. Samples with mask False, or with a reward that is no number (no verdict), take no part and
    get 0. Groups whose rewards are all equal, and groups of one, get exactly 0.
    """
    rewards, live = _live_rewards(rewards_PG, mask_PG)
    # Measured from the smallest reward, equal rewards are exactly 0 and large offsets cost no precision.
    rewards = jnp.where(live, rewards - _lowest(rewards, live), 0.0)
    count = live.sum(axis=1, keepdims=True)
    total = rewards.sum(axis=1, keepdims=True)
    mean = total / jnp.maximum(count, 1)
    baseline = (total - rewards) / jnp.maximum(count - 1, 1) if leave_one_out else mean
    advantages = rewards - baseline
    if normalize_std:
        variance = jnp.where(live, (rewards - mean) ** 2, 0.0).sum(axis=1, keepdims=True) / jnp.maximum(count, 1)
        advantages = advantages / (jnp.sqrt(variance) + eps)
    keep = informative_groups(rewards_PG, mask_PG=mask_PG)
    return jnp.where(live & keep[:, None], advantages, 0.0)


def informative_groups(
    rewards_PG: Float[Array, "P G"], *, mask_PG: Bool[Array, "P G"] | None = None
) -> Bool[Array, " P"]:
    """False where every reward that takes part is equal: such a group has no gradient (DAPO, dynamic sampling)."""
    rewards, live = _live_rewards(rewards_PG, mask_PG)
    highest = jnp.where(live, rewards, -jnp.inf).max(axis=1)
    return highest > _lowest(rewards, live)[:, 0]


def groups_above(rewards_PG: Float[Array, "P G"], floor: float) -> Bool[Array, " P"]:
    """False where no reward of the group exceeds `floor`: what nobody solves teaches noise (Cascade 2, section 4.8.1).

    Rewards that are no number (no verdict) exceed nothing.
    """
    return (jnp.asarray(rewards_PG, jnp.float32) > floor).any(axis=1)


def overlong_penalty(rewards_PG: Float[Array, "P G"], truncated_PG: Bool[Array, "P G"]) -> Float[Array, "P G"]:
    """Reward 0 for samples that ran into the length limit; they stay in the loss.

    The overlong filter is another thing: it leaves rewards alone and empties the loss mask of such samples.
    """
    return jnp.where(truncated_PG, 0.0, rewards_PG)


def _live_rewards(rewards_PG: Array, mask_PG: Array | None) -> tuple[Array, Array]:
    rewards = jnp.asarray(rewards_PG, jnp.float32)
    live = jnp.isfinite(rewards)
    return rewards, live if mask_PG is None else live & jnp.asarray(mask_PG, bool)


def _lowest(rewards: Array, live: Array) -> Array:
    return jnp.where(live, rewards, jnp.inf).min(axis=1, keepdims=True)
