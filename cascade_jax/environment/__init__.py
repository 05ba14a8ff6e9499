"""Domains of several turns. One file or folder per environment; the protocol is `cascade_jax.rollout.environment`."""

from collections.abc import Callable

from cascade_jax.environment.nemo_gym.resources import ResourcesServer
from cascade_jax.environment.swe import SoftwareRepair
from cascade_jax.environment.taskset import Taskset
from cascade_jax.environment.terminal import Terminal
from cascade_jax.environment.workplace import Workplace
from cascade_jax.rollout.environment import Environment

# Row kind, or what a domain names as its environment -> constructor; a domain's settings are its keyword arguments.
ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "nemo_gym": ResourcesServer,
    "swe": SoftwareRepair,
    "terminal": Terminal,
    "verifiers": Taskset,
    "workplace": Workplace,
}

__all__ = ["ENVIRONMENTS"]
