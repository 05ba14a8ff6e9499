"""What is measured: operations at shapes for a CPU or for an accelerator, each beside the other ways to do it."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pallas_kernels.attention import attention
from pallas_kernels.bench import others
from pallas_kernels.dispatch import target
from pallas_kernels.grouped_matmul import grouped_matmul, weight_gradient
from pallas_kernels.ssd import ssd
from pallas_kernels.token_logprob import token_logprob

Run = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One workload. `make` gives its arguments; the first of `ways` is ours as it is chosen, and the rest compare.

    unchecked: ways of the same work that compute something else. flops: of useful multiply-adds, twice their number.
    """

    operation: str
    name: str
    make: Callable[[], tuple[Any, ...]]
    ways: dict[str, Run]
    flops: float
    unchecked: frozenset[str] = field(default=frozenset({"dense"}))


def every(operations: tuple[str, ...]) -> Iterator[Case]:
    """The cases for the device that is there."""
    small = target().platform == "cpu"
    for operation in operations:
        yield from OPERATIONS[operation](small)


def _pulled(run: Run, arguments: tuple[int, ...]) -> Run:
    """The result and the gradients of those arguments, for a cotangent that is the result itself."""

    def both(*given: Any) -> tuple[Any, ...]:
        def of(*chosen: Array) -> Any:
            return run(*(chosen[arguments.index(i)] if i in arguments else one for i, one in enumerate(given)))

        out, pull = jax.vjp(of, *(given[i] for i in arguments))
        return out, *pull(out)

    return both


def _named(ours: Callable[..., Run], names: tuple[str, ...]) -> dict[str, Run]:
    """Ours as chosen, and each implementation by its name; those that do not support the call are left out later."""
    return {"ours": ours(None), **{name: ours(name) for name in names}}


def skewed(rows: int, groups: int) -> np.ndarray:
    """Rows of each group as a router leaves them: some experts are asked four times as often as the mean."""
    shares = np.random.default_rng(0).gamma(2.0, size=groups)
    sizes = np.floor(shares / shares.sum() * rows).astype(np.int32)
    sizes[0] += rows - sizes.sum()
    return sizes


def _grouped(small: bool) -> Iterator[Case]:
    shapes = [(2048, 256, 192, 32), (1536, 336, 232, 128), (4096, 512, 384, 16)]
    dtype = jnp.float32 if small else jnp.bfloat16
    for M, K, N, G in shapes if small else [(131_072, 2688, 1920, 128), (131_072, 1920, 2688, 128)]:

        def make(M: int = M, K: int = K, N: int = N, G: int = G) -> tuple[Any, ...]:
            keys = jax.random.split(jax.random.key(0), 3)
            x, dy = jax.random.normal(keys[0], (M, K), dtype), jax.random.normal(keys[1], (M, N), dtype)
            return x, jax.random.normal(keys[2], (G, K, N), dtype), jnp.asarray(skewed(M, G)), dy

        def ours(name: str | None, *, transposed: bool = False) -> Run:
            settings = {"transposed": transposed, "implementation": name}
            return lambda x, w, sizes, dy: grouped_matmul(dy if transposed else x, w, sizes, **settings)

        def products(name: str | None) -> Run:
            return lambda x, w, sizes, dy: weight_gradient(x, dy, sizes, dtype, implementation=name)

        shape, flops = f"({M}, {K}->{N}, {G} groups)", 2.0 * M * K * N
        names = ("xla", "pallas_tpu", "pallas_gpu")
        forward = {**_named(ours, names), **others.grouped_matmul()}
        yield Case("grouped_matmul", f"{shape} forward", make, forward, flops)
        both = {name: _pulled(forward[name], (0, 1)) for name in forward if name not in others.FORWARD_ALONE}
        yield Case("grouped_matmul", f"{shape} with gradients", make, both, 3 * flops)
        if small:
            continue
        turned = {**_named(functools.partial(ours, transposed=True), names), **others.input_gradient()}
        yield Case("grouped_matmul", f"{shape} input gradient", make, turned, flops)
        gradient = {**_named(products, names), **others.weight_gradient()}
        yield Case("grouped_matmul", f"{shape} weight gradient", make, gradient, flops)


def _logprob(small: bool) -> Iterator[Case]:
    T, D, V, dtype = (8192, 128, 131_072, jnp.float32) if small else (8192, 2688, 131_072, jnp.bfloat16)

    def make() -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(0), 3)
        hidden, head = (
            jax.random.normal(key, shape, dtype) for key, shape in zip(keys, ((T, D), (D, V)), strict=False)
        )
        return hidden, head / D**0.5, jax.random.randint(keys[2], (T,), 0, V)

    def ours(name: str | None) -> Run:
        return lambda hidden, head, targets: token_logprob(hidden, head, targets, implementation=name)[:2]

    ways = {**_named(ours, ("xla", "pallas_tpu", "pallas_gpu")), "materialised": others.materialised_logprob}
    shape = f"({T}, {D}, {V})"
    yield Case("token_logprob", f"{shape} forward", make, ways, 2.0 * T * D * V)
    both = {name: _pulled(run, (0, 1)) for name, run in ways.items()}
    yield Case("token_logprob", f"{shape} with gradients", make, both, 6.0 * T * D * V)


def _attention(small: bool) -> Iterator[Case]:
    B, T, H, K, D, dtype = (1, 2048, 8, 2, 64, jnp.float32) if small else (2, 16_384, 32, 2, 128, jnp.bfloat16)
    for documents in (1, 8):

        def make(documents: int = documents) -> tuple[Any, ...]:
            keys = jax.random.split(jax.random.key(0), 3)
            q, k, v = (jax.random.normal(key, (B, T, n, D), dtype) for key, n in zip(keys, (H, K, K), strict=True))
            return q, k, v, jnp.broadcast_to(jnp.arange(T) * documents // T + 1, (B, T)).astype(jnp.int32)

        def ours(name: str | None) -> Run:
            return lambda q, k, v, segments: attention(
                q, k, v, query_segments_BT=segments, key_segments_BS=segments, implementation=name
            )

        names = ("xla", "pallas_tpu", "pallas_gpu", "cudnn")
        ways = {**_named(ours, names), **others.attention(small)}
        shape, flops = f"({B}, {T}, {H}/{K}, {D}), {documents} documents", 2.0 * B * H * D * T * T / documents
        yield Case("attention", f"{shape} forward", make, ways, flops)
        both = {name: _pulled(run, (0, 1, 2)) for name, run in ways.items()}
        yield Case("attention", f"{shape} with gradients", make, both, 3.5 * flops)


def _ssd(small: bool) -> Iterator[Case]:
    B, T, H, P, G, N = (1, 2048, 8, 32, 2, 64) if small else (2, 16_384, 64, 64, 8, 128)
    dtype, chunk = (jnp.float32, 64) if small else (jnp.bfloat16, 128)

    def make() -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(0), 4)
        x, b, c = (
            jax.random.normal(key, (B, T, *rest), dtype)
            for key, rest in zip(keys, ((H, P), (G, N), (G, N)), strict=False)
        )
        dt = jax.nn.softplus(jax.random.normal(keys[3], (B, T, H)) - 2)
        segments = jnp.broadcast_to(jnp.arange(T) * 4 // T + 1, (B, T)).astype(jnp.int32)
        return x, dt, -jnp.linspace(1.0, 16.0, H), b, c, segments

    def ours(name: str | None) -> Run:
        return lambda *given: ssd(*given, chunk=chunk, implementation=name)[0]

    ways = _named(ours, ("xla", "pallas_tpu", "pallas_gpu") + (("reference",) if small else ()))
    shape, flops = (
        f"({B}, {T}, {H}, {P}), {G} groups, state {N}",
        2.0 * B * T * H * (2 * P * N + chunk * (P + N / 8) / 2),
    )
    yield Case("ssd", f"{shape} forward", make, ways, flops)
    both = {name: _pulled(run, (0, 1, 3, 4)) for name, run in ways.items()}
    yield Case("ssd", f"{shape} with gradients", make, both, 3 * flops)


OPERATIONS: dict[str, Callable[[bool], Iterator[Case]]] = {
    "grouped_matmul": _grouped,
    "token_logprob": _logprob,
    "attention": _attention,
    "ssd": _ssd,
}
