"""The dense feed-forward layer, and the activations that experts share with it."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from cascade_jax.config import ModelConfig
from cascade_jax.model import axes
from cascade_jax.model.linear import normal, project, project_each


def activate(up: Float[Array, "... f"], gate: Float[Array, "... f"] | None = None) -> Float[Array, "... f"]:
    """relu(up)^2 without a gate (Primer), silu(gate) * up with one (SwiGLU)."""
    return jax.nn.relu(up) ** 2 if gate is None else jax.nn.silu(gate) * up


class MLP(nnx.Module):
    """up (D, F), down (F, D), and gate (D, F) for SwiGLU."""

    def __init__(self, config: ModelConfig, key: Array, *, width: int) -> None:
        shape, names, std = (config.width, width), ("embed", "mlp"), config.initializer_range
        up, down, gate = jax.random.split(key, 3)
        self.up = normal(up, shape, names, std=std)
        self.down = normal(down, shape[::-1], names[::-1], std=std)
        self.gate = normal(gate, shape, names, std=std) if config.activation == "swiglu" else None

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        up, *gate = project_each(x, [self.up] if self.gate is None else [self.up, self.gate])
        return axes.total(project(activate(up, *gate), self.down[...]), "tensor")
