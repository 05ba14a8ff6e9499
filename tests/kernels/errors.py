"""How far results are from float64, and the two rules that every implementation is held to."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

Arrays = Sequence[jax.Array]


def with_gradients(function: Callable, arguments: Arrays, cotangents: Arrays) -> list[np.ndarray]:
    """The outputs of the function and the gradients of all arguments, as float64."""

    @jax.jit
    def run(arguments: Arrays, cotangents: Arrays) -> list[jax.Array]:
        outputs, pull = jax.vjp(function, *arguments)
        return [*outputs, *pull(tuple(c.astype(o.dtype) for c, o in zip(cotangents, outputs, strict=True)))]

    return [np.asarray(a, np.float64) for a in run(arguments, cotangents)]


def exact(function: Callable, arguments: Arrays, cotangents: Arrays) -> list[np.ndarray]:
    """The same in float64, of the same numbers."""
    with jax.enable_x64(True):
        wide = [[jax.numpy.asarray(np.asarray(a, np.float64)) for a in arrays] for arrays in (arguments, cotangents)]
        return with_gradients(function, *wide)


def largest(found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """The largest error, relative to the largest entry of its array."""
    return max(float(np.abs(f - t).max() / max(np.abs(t).max(), 1e-30)) for f, t in zip(found, truth, strict=True))


def ratios(found: Sequence[np.ndarray], other: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> list[float]:
    """Of each array: the root mean square error of the one, divided by that of the other."""
    return [
        float(np.sqrt(np.mean((f - t) ** 2) / max(np.mean((o - t) ** 2), 1e-30)))
        for f, o, t in zip(found, other, truth, strict=True)
    ]
