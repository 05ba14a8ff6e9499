"""AdamW or Muon under a global gradient clip, with the learning rate warmed up and then constant or cosine."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from cascade_jax.config import OptimizerConfig
from cascade_jax.leaves import map_by_path
from cascade_jax.types import Params

# Vectors by meaning, beside norms and biases, whatever their rank where layers are stacked.
UNDECAYED = ("A_log", "D")
# Of the layers' matrices these are no linear maps that a gradient step should treat as one.
NOT_FOR_MUON = ("router", "conv_weight")
MUON_MOMENTUM, MUON_RMS = 0.95, 0.2  # Moonlight's: arXiv 2502.16982, section 2.2


def make_optimizer(
    config: OptimizerConfig, *, total_steps: int, frozen: Callable[[str], bool] | None = None
) -> optax.GradientTransformation:
    """Clip by the norm over all gradients, then AdamW or Muon. Weights decay; norms, biases, A_log and D do not.

    Muon orthogonalises the step of each matrix inside of layers, an expert's too, and scales it to the RMS that AdamW's
    steps have, so that one learning rate and decay serve both; the rest takes AdamW's step. What rests, by `resting`,
    has no state here.
    """
    adam = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    step = adam if config.name == "adamw" else optax.partition({"muon": _muon(), "adamw": adam}, rules)
    inner = optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        step,
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
        optax.scale_by_learning_rate(learning_rate(config, total_steps)),
    )
    rests = resting(config, frozen)
    return optax.masked(inner, lambda params: map_by_path(lambda path, _: not rests(path), params))


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


def resting(config: OptimizerConfig, frozen: Callable[[str], bool] | None = None) -> Callable[[str], bool]:
    """path -> whether the optimizer leaves it alone: the frozen, the routers' biases, and frozen routers' weights."""

    def rests(path: str) -> bool:
        frozen_router = config.freeze_router and path.split("/")[-1] == "router"
        return is_router_bias(path) or frozen_router or (frozen is not None and frozen(path))

    return rests


def is_router_bias(path: str) -> bool:
    """The correction bias, which steers the choice of experts alone: it has no gradient."""
    return path.split("/")[-1] == "router_bias"


def decayed(params: Params) -> Any:
    """The tree of params with True where weight decay applies: matrices and kernels, judged by name and rank."""
    return map_by_path(_decays, params)


def rules(params: Params) -> Any:
    """The tree of params with "muon" for the matrices inside of layers, a stack of experts' too, else "adamw"."""

    def one(path: str, leaf: jax.Array) -> str:
        inside = path.startswith("layers/") and path.split("/")[-1] not in NOT_FOR_MUON
        return "muon" if inside and _decays(path, leaf) else "adamw"

    return map_by_path(one, params)


def _muon() -> optax.GradientTransformation:
    def matrices(tree: Params) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), tree)

    def scaled(update: jax.Array, _: jax.Array | None) -> jax.Array:
        return MUON_RMS * max(update.shape[-2:]) ** 0.5 * update

    return optax.chain(
        optax.contrib.scale_by_muon(beta=MUON_MOMENTUM, weight_dimension_numbers=matrices),
        optax.stateless_with_tree_map(scaled),
    )


def _decays(path: str, leaf: jax.Array) -> bool:
    name = path.split("/")[-1]
    return leaf.ndim > 1 and not (name in UNDECAYED or name.endswith(("bias", "norm")))
