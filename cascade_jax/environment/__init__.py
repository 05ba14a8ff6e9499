"""Domains of several turns. One file or folder per environment; the protocol is `cascade_jax.rollout.environment`."""

from collections.abc import Callable

from cascade_jax.environment.swe import SoftwareRepair
from cascade_jax.environment.terminal import Terminal
from cascade_jax.rollout.environment import Environment

# Row kind -> constructor; a domain's settings are its keyword arguments.
ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "swe": SoftwareRepair,
    "terminal": Terminal,
}

__all__ = ["ENVIRONMENTS"]
