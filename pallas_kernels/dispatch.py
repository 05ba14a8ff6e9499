"""Which implementation of an operation runs: the one that was named, or the first that supports the call."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

import jax

Implementation = Literal["xla", "pallas_tpu", "pallas_gpu", "reference"]

# None where the call is supported, otherwise the reason why it is not, as the end of a sentence.
Obstacle = Callable[[], str | None]

_log = logging.getLogger(__name__)
_said: set[tuple[str, str, str]] = set()


class Target(NamedTuple):
    """The device that a program is traced for: platform "tpu", "gpu" or "cpu", and JAX's name of the chip."""

    platform: str
    kind: str


_target: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def compiling_for(platform: str, kind: str) -> Iterator[None]:
    """Traces inside choose for this device instead of the one that JAX finds, for compilation ahead of time."""
    token = _target.set(Target(platform, kind))
    try:
        yield
    finally:
        _target.reset(token)


def target() -> Target:
    """The device that is traced for: the one of `compiling_for`, else of the mesh in use, else JAX's first."""
    described = _target.get()
    if described is not None:
        return described
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        first = jax.devices()[0]
        return Target(first.platform, first.device_kind)
    return Target("gpu" if device.platform == "cuda" else device.platform, device.device_kind)


def wrong_platform(platform: str) -> str | None:
    """The obstacle of a kernel written for one platform."""
    found = target()
    return None if found.platform == platform else f"it runs on a {platform} and this program is for {found.kind}"


def choose(
    operation: str, implementation: Implementation | None, obstacles: Mapping[Implementation, Obstacle]
) -> Implementation:
    """Name of the implementation to run.

    `obstacles` lists the implementations in order of preference. A named one is taken or ValueError says why it cannot
    be; None takes the first without an obstacle and logs which, once per operation and kind of device. "reference" is
    slow and obvious: it runs only when it is named.
    """
    if implementation is not None:
        if implementation not in obstacles:
            raise ValueError(
                f"{operation}: implementation={implementation!r} is not one of {', '.join(obstacles)}; "
                "None takes the best that fits"
            )
        reason = obstacles[implementation]()
        if reason is not None:
            raise ValueError(f"{operation}: implementation={implementation!r} cannot be used here: {reason}")
        return implementation
    for name, obstacle in obstacles.items():
        if name != "reference" and obstacle() is None:
            said = (operation, target().kind, name)
            if said not in _said:
                _said.add(said)
                _log.info("%s on %s: %s", operation, target().kind, name)
            return name
    raise ValueError(f"{operation}: no implementation supports this call on {target().kind}")
