"""Values and gradients of the scan and the convolution against float64, as far as they run on a CPU."""

import functools
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.ssd import api, causal_conv, reference, ssd, ssd_carried
from tests.kernels.errors import exact, largest, ratios, with_gradients

LENGTHS = {"rows": 260, "one": 1}


@functools.cache
def problem(make: str) -> tuple[list, list, list, tuple]:
    """x, dt, A, B, C and the initial state; cotangents; outputs and gradients in float64; segments and the one before.

    x, B, C and dy fit in bfloat16, so that float32 and bfloat16 have the same truth.
    """
    T, (B, H, P, G, N) = LENGTHS[make], (3, 16, 16, 2, 128)
    keys = iter(jax.random.split(jax.random.key(1), 9))

    def coarse(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.bfloat16).astype(jnp.float32)

    x, dy = coarse((2, B, T, H, P))
    Bs, Cs = coarse((2, B, T, G, N)) / 4
    initial, dstate = jax.random.normal(next(keys), (2, B, H, P, N))
    dt = jax.random.uniform(next(keys), (B, T, H)) * jnp.asarray([0.1, 0.02, 3.0])[:, None, None]
    dt = dt.at[0, 90:95].set(0.0)  # padding between documents
    A = -jax.random.uniform(next(keys), (H,), minval=1.0, maxval=16.0)
    # Documents that end inside a chunk, at its edge and after one token; one document; short ones.
    ends = np.asarray([[90, 95, 128, 129, 256, 259], [300] * 6, [3, 6, 9, 130, 133, 135]])
    segments = jnp.asarray((np.arange(T)[None, :, None] >= ends[:, None, :]).sum(-1) + 1)
    before = jnp.asarray([1, 1, 7])  # the last row's state is of another document
    arguments, cotangents = [x, dt, A, Bs, Cs, initial], [dy, dstate]
    truth = exact(lambda *a: reference.forward(*a[:5], segments, before, a[5]), arguments, cotangents)
    return arguments, cotangents, truth, (segments, before)


def found(name: str, make: str, dtype: str, chunk: int = 128) -> list[np.ndarray]:
    (x, dt, A, B, C, initial), cotangents, _, (segments, before) = problem(make)

    def run(*a: jax.Array) -> tuple[jax.Array, jax.Array]:
        rest = {"initial_state": a[5], "before_segment": before, "implementation": name}
        return ssd(*a[:5], segments, chunk=chunk, **rest)[:2]

    return with_gradients(run, [x.astype(dtype), dt, A, B.astype(dtype), C.astype(dtype), initial], cotangents)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' bodies on the CPU."""
    backend = api._backend

    def interpreting(name: str) -> ModuleType:
        module, inner = backend(name), ModuleType(name)
        inner.forward = functools.partial(module.forward, interpret=True)
        inner.backward = functools.partial(module.backward, interpret=True)
        return inner

    monkeypatch.setattr(api, "_backend", interpreting)
    monkeypatch.setattr(api, "wrong_platform", lambda _: None)


@pytest.mark.parametrize(
    ("name", "make", "chunk"),
    [
        ("xla", "rows", 128),
        ("xla", "rows", 24),  # the result does not depend on it
        ("xla", "one", 128),
        ("pallas_tpu", "rows", 128),
        ("pallas_tpu", "one", 128),
        ("pallas_gpu", "rows", 128),
    ],
)
def test_float32(name: str, make: str, chunk: int, interpreted: None) -> None:
    assert largest(found(name, make, "float32", chunk), problem(make)[2]) < 2e-5


@pytest.mark.parametrize("name", ["pallas_tpu", "pallas_gpu"])
def test_bfloat16_is_as_good_as_xla(name: str, interpreted: None) -> None:
    ours, others, truth = found(name, "rows", "bfloat16"), found("xla", "rows", "bfloat16"), problem("rows")[2]
    assert max(ratios(ours, others, truth)) < 1.5


def test_shards_join() -> None:
    """As context parallelism does it: each shard from nothing, then the states joined and what they carry added."""
    (x, dt, A, B, C, initial), _, truth, (segments, before) = problem("rows")
    state, of = initial, before
    for tokens in (slice(0, 100), slice(100, 230), slice(230, 260)):
        part = [a[:, tokens] for a in (x, dt, B, C, segments)]
        y, final, left = ssd(part[0], part[1], A, *part[2:], chunk=64, before_segment=of, implementation="xla")
        y = y + ssd_carried(part[1], A, part[3], part[4], state, of)
        assert largest([np.asarray(y)], [truth[0][:, tokens]]) < 2e-5
        state, of = left[..., None, None] * state + final, part[4][:, -1]
    assert largest([np.asarray(state)], truth[1:2]) < 2e-5


def convolution(
    x: jax.Array, weight: jax.Array, bias: jax.Array, history: jax.Array, segments: np.ndarray
) -> jax.Array:
    """Token by token."""
    rows = jnp.concatenate([history, x], axis=1)
    outs = []
    for t in range(x.shape[1]):
        same = segments[:, t : t + 4] == segments[:, t + 3 : t + 4]
        outs.append(bias + (jnp.where(same[..., None], rows[:, t : t + 4], 0.0) * weight).sum(1))
    return jax.nn.silu(jnp.stack(outs, axis=1))


def test_convolution() -> None:
    keys = jax.random.split(jax.random.key(2), 5)
    shapes = [(2, 20, 6), (4, 6), (6,), (2, 3, 6), (2, 20, 6)]
    *arguments, cotangent = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    segments = np.asarray([[1, 1, 1] + [1] * 5 + [2] * 2 + [3] * 10 + [0] * 3, [4, 5, 5] + [5] * 20])
    truth = exact(lambda *a: (convolution(*a, segments),), arguments, [cotangent])

    def ours(x: jax.Array, weight: jax.Array, bias: jax.Array, history: jax.Array) -> tuple[jax.Array]:
        past = {"history_BWC": history, "history_segments_BW": jnp.asarray(segments[:, :3])}
        return (causal_conv(x, weight, bias, jnp.asarray(segments[:, 3:]), **past),)

    assert largest(with_gradients(ours, arguments, [cotangent]), truth) < 2e-5


def test_refusals() -> None:
    x, dt, A, B = jnp.zeros((1, 8, 4, 16)), jnp.zeros((1, 8, 4)), jnp.zeros(4), jnp.zeros((1, 8, 3, 32))
    segments = jnp.ones((1, 8), jnp.int32)
    with pytest.raises(ValueError, match="H a multiple of G"):
        ssd(x, dt, A, B, B, segments, chunk=16)
    with pytest.raises(ValueError, match="it runs on a tpu"):
        ssd(x, dt, A, B[:, :, :2], B[:, :, :2], segments, chunk=16, implementation="pallas_tpu")
    with pytest.raises(ValueError, match="3 tokens of history, not 2"):
        causal_conv(jnp.zeros((1, 8, 4)), jnp.zeros((4, 4)), A, segments, history_BWC=jnp.zeros((1, 2, 4)))
