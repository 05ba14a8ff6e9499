"""AdamW under a global gradient clip, with the learning rate warmed up and then constant or cosine."""

from typing import Any

import jax
import optax

from cascade_jax.config import OptimizerConfig
from cascade_jax.types import Params

# Vectors by meaning, beside norms and biases, whatever their rank where layers are stacked.
UNDECAYED = ("A_log", "D")


def make_optimizer(config: OptimizerConfig, *, total_steps: int) -> optax.GradientTransformation:
    """Clip by the norm over all gradients, then AdamW. Weights decay; norms, biases, A_log and D do not."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config, total_steps),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )


def learning_rate(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """step -> rate: `warmup_from` at step 0, the full rate at `warmup_steps`, the cosine's end at `total_steps`."""
    warmup = optax.linear_schedule(config.warmup_from, config.learning_rate, config.warmup_steps)
    if config.schedule == "constant":
        after = optax.constant_schedule(config.learning_rate)
    else:
        steps = max(total_steps - config.warmup_steps, 1)
        after = optax.cosine_decay_schedule(
            config.learning_rate, steps, alpha=config.min_learning_rate / config.learning_rate
        )
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def decayed(params: Params) -> Any:
    """The tree of params with True where weight decay applies: matrices and kernels, judged by name and rank."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf.ndim > 1 and not _undecayed(path), params)


def _undecayed(path: tuple[Any, ...]) -> bool:
    names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
    return names[-1] in UNDECAYED or names[-1].endswith(("bias", "norm"))
