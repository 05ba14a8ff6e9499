"""Times of several ways to do one thing: in turns, so that what else the machine does falls on all of them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_kernels.bench.others import for_torch


@dataclass(frozen=True)
class Measured:
    """Seconds of each turn; bytes of scratch by the compiler's count (None: not ours to count)."""

    seconds: tuple[float, ...]
    scratch: int | None
    result: Any

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


def measure(
    ways: Mapping[str, Callable[..., Any]], arguments: tuple[Any, ...], *, repeats: int, budget: float
) -> tuple[dict[str, Measured], dict[str, str]]:
    """name -> times, and name -> why a way cannot run here. One turn of each way `repeats` times, after a first.

    budget: seconds for all turns of all ways; at least three turns of each are made.
    """
    ready, refused = {}, {}
    for name, run in ways.items():
        try:
            ready[name] = _prepared(name, run, arguments)
        except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError, RuntimeError) as error:
            refused[name] = str(error).splitlines()[0]
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    begun = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - begun > budget:
            break
        for name, (call, _, _) in ready.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: Measured(tuple(seconds[name]), *rest) for name, (_, *rest) in ready.items()}, refused


def _prepared(
    name: str, run: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Callable[[], None], int | None, Any]:
    """A call that returns when the device is done, scratch bytes, and the result of a first call, which warms up."""
    if name.startswith("torch"):
        import torch

        given = for_torch(arguments)

        def call() -> None:
            run(*given)
            torch.cuda.synchronize()

        result = run(*given).float().cpu().numpy()
        return call, None, [result]
    # A function of its own: JAX would remember the program that it traced with other block sizes.
    compiled = jax.jit(lambda *given: run(*given)).lower(*arguments).compile()
    scratch = compiled.memory_analysis().temp_size_in_bytes
    result = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(compiled(*arguments))]
    return lambda: jax.block_until_ready(compiled(*arguments)), scratch, result
