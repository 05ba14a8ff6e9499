"""Which implementation of an operation runs: the one that was named, or the first that supports the call."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, NamedTuple

import jax

Implementation = Literal["xla", "pallas_tpu", "pallas_gpu", "reference"]

# None where the call is supported, otherwise the reason why it is not, as the end of a sentence.
Obstacle = Callable[[], str | None]

_log = logging.getLogger(__name__)
_chosen: dict[str, set[str]] = {}


class Target(NamedTuple):
    """The device that a program is traced for: platform "tpu", "gpu" or "cpu", and JAX's name of the chip."""

    platform: str
    kind: str


_preferred: ContextVar[Mapping[str, Implementation]] = ContextVar("preferred", default=MappingProxyType({}))
_target: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def compiling_for(platform: str, kind: str) -> Iterator[None]:
    """Traces inside choose for this device instead of the one that JAX finds, for compilation ahead of time."""
    token = _target.set(Target(platform, kind))
    try:
        yield
    finally:
        _target.reset(token)


@contextmanager
def preferring(implementations: Mapping[str, Implementation]) -> Iterator[None]:
    """Calls inside that name no implementation take the one that is named here for their operation, or raise."""
    token = _preferred.set(implementations)
    try:
        yield
    finally:
        _preferred.reset(token)


def preferred(operation: str) -> Implementation | None:
    """What `preferring` names for it."""
    return _preferred.get().get(operation)


def chosen() -> dict[str, list[str]]:
    """operation -> the implementations that this process has put into its programs so far."""
    return {operation: sorted(names) for operation, names in sorted(_chosen.items())}


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
    be; None takes what is preferred, or else the first without an obstacle, and logs which, once per operation.
    "reference" is slow and obvious: it runs only when it is named.
    """
    implementation = preferred(operation) if implementation is None else implementation
    if implementation is not None:
        if implementation not in obstacles:
            raise ValueError(
                f"{operation}: implementation={implementation!r} is not one of {', '.join(obstacles)}; "
                "None takes the best that fits"
            )
        reason = obstacles[implementation]()
        if reason is not None:
            raise ValueError(f"{operation}: implementation={implementation!r} cannot be used here: {reason}")
        return _noted(operation, implementation)
    for name, obstacle in obstacles.items():
        if name != "reference" and obstacle() is None:
            return _noted(operation, name)
    raise ValueError(f"{operation}: no implementation supports this call on {target().kind}")


def _noted(operation: str, name: Implementation) -> Implementation:
    names = _chosen.setdefault(operation, set())
    if name not in names:
        names.add(name)
        _log.info("%s on %s: %s", operation, target().kind, name)
    return name
