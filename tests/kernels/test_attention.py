"""Values and gradients of attention against float64, for each implementation, as far as it runs on a CPU."""

import functools
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tuning
from pallas_kernels.attention import api, attention, attention_gradients, reference, xla
from pallas_kernels.attention.visibility import Visibility, mask, padded, tiles_that_meet
from pallas_kernels.attention.work import work
from tests.kernels.errors import exact, largest, ratios, with_gradients

SCALE = 0.11


def document_ids(lengths: list[int], total: int) -> np.ndarray:
    """Documents 1, 2, ... of those lengths, then padding."""
    row = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.pad(row, (0, total - len(row)))


def rows() -> tuple[tuple[int, ...], Visibility]:
    """150 queries and 200 keys: a packed row, short documents, a prefill over a cache, a ring's later keys."""
    packed, short = document_ids([70, 1, 40, 9], 150), document_ids([3] * 45 + [1] * 5, 150)
    ones = np.ones(200, int)
    places = np.arange(150)
    return (4, 150, 200, 4, 2, 128), Visibility(
        jnp.asarray([places, places, places + 50, places - 150]),
        jnp.asarray([packed, short, ones[:150], ones[:150]]),
        jnp.asarray([np.pad(packed, (0, 50)), np.pad(short, (0, 50)), ones, ones]),
    )


def decode() -> tuple[tuple[int, ...], Visibility]:
    ones = jnp.ones((3, 200), jnp.int32)
    return (3, 1, 200, 8, 2, 128), Visibility(jnp.asarray([[0], [127], [199]]), ones[:, :1], ones)


def one() -> tuple[tuple[int, ...], Visibility]:
    ones = jnp.ones((1, 1), jnp.int32)
    return (1, 1, 1, 2, 2, 128), Visibility(ones - 1, ones, ones)


@functools.cache
def problem(make: Callable) -> tuple[list, list, list, Visibility]:
    """q, k, v; the cotangents of out and lse; outputs and gradients in float64; who sees what.

    The numbers fit in bfloat16, so that float32 and bfloat16 have the same truth.
    """
    (B, T, S, H, K, D), seen = make()
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(B, T, H, D), (B, S, K, D), (B, S, K, D), (B, T, H, D), (B, T, H)]
    q, k, v, d_out, d_lse = (
        jax.random.normal(key, shape, jnp.bfloat16).astype(jnp.float32) for key, shape in zip(keys, shapes, strict=True)
    )
    truth = exact(lambda *a: reference.forward(*a, seen, SCALE), [q, k, v], [d_out, d_lse])
    return [q, k, v], [d_out, d_lse], truth, seen


def found(name: str, make: Callable, dtype: str) -> list[np.ndarray]:
    arguments, cotangents, _, seen = problem(make)

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return attention(q, k, v, **named(seen), scale=SCALE, return_lse=True, implementation=name)

    return with_gradients(run, [a.astype(dtype) for a in arguments], cotangents)


def named(seen: Visibility) -> dict[str, jax.Array]:
    positions, segments, key_segments = seen
    return {"query_positions_BT": positions, "query_segments_BT": segments, "key_segments_BS": key_segments}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' bodies on the CPU, with tiles so small that the rows have several."""
    sizes = {"queries": 64, "keys": 128, "chunk": 128, "heads": 2, "warps": 4, "stages": 1}
    monkeypatch.setattr(tuning, "blocks", lambda *_, **__: sizes)
    monkeypatch.setattr(xla, "TILE", 64)
    monkeypatch.setattr(api, "wrong_platform", lambda _: None)
    backend = api._backend

    def interpreting(name: str) -> ModuleType:
        module, inner = backend(name), ModuleType(name)
        options = {} if name == "xla" else {"interpret": True}
        inner.forward = functools.partial(module.forward, **options)
        inner.backward = functools.partial(module.backward, **options)
        return inner

    monkeypatch.setattr(api, "_backend", interpreting)


@pytest.mark.parametrize("make", [rows, decode, one])
@pytest.mark.parametrize("name", ["xla", "pallas_tpu", "pallas_gpu"])
def test_float32(name: str, make: Callable, interpreted: None) -> None:
    assert largest(found(name, make, "float32"), problem(make)[2]) < 2e-5


@pytest.mark.parametrize("name", ["pallas_tpu", "pallas_gpu"])
def test_bfloat16_is_as_good_as_xla(name: str, interpreted: None) -> None:
    ours, others, truth = found(name, rows, "bfloat16"), found("xla", rows, "bfloat16"), problem(rows)[2]
    assert largest(ours[1:2], truth[1:2]) < 2e-5  # the log-sum-exp is never rounded to bfloat16
    ours, others, truth = ([of[0], *of[2:]] for of in (ours, others, truth))
    assert max(ratios(ours, others, truth)) < 1.5


def test_padding_sees_nothing(interpreted: None) -> None:
    out, lse = found("xla", rows, "float32")[:2]
    assert not out[0, 120:].any() and (lse[0, 120:] == np.float32(reference.FLOOR)).all()


def test_parts_of_a_row_combine(interpreted: None) -> None:
    """As a ring does it: outputs by their log-sum-exp, gradients by those of the whole row."""
    (q, k, v), (d_out, _), _, seen = problem(rows)
    whole, lse = attention(q, k, v, **named(seen), scale=SCALE, return_lse=True, implementation="xla")
    slope = (d_out * whole).sum(-1)
    parts, gradients = [], []
    for keys in (slice(0, 90), slice(90, 200)):
        part = Visibility(seen.query_positions - keys.start, seen.query_segments, seen.key_segments[:, keys])
        rest = {**named(part), "scale": SCALE, "implementation": "xla"}
        parts.append(attention(q, k[:, keys], v[:, keys], **rest, return_lse=True))
        gradients.append(attention_gradients(q, k[:, keys], v[:, keys], d_out, lse, slope, **rest))
    weights = jax.nn.softmax(jnp.stack([part[1] for part in parts]), axis=0)[..., None]
    sees = np.asarray(mask(seen).any(-1))[:, :, None, None]
    combined = sum(w * part[0] for w, part in zip(weights, parts, strict=True))
    np.testing.assert_allclose(np.where(sees, combined, 0.0), whole, atol=2e-6)
    of_whole = attention_gradients(q, k, v, d_out, lse, slope, **named(seen), scale=SCALE, implementation="xla")
    joined = [
        gradients[0][0] + gradients[1][0],
        *(jnp.concatenate(g, axis=1) for g in list(zip(*gradients, strict=True))[1:]),
    ]
    assert largest([np.asarray(g) for g in joined], [np.asarray(g) for g in of_whole]) < 1e-5


def test_work_visits_what_is_seen_and_little_else() -> None:
    _, seen = rows()
    seen = padded(seen, 160, 256)
    meet = tiles_that_meet(seen, 32, 32)
    visible = np.asarray(mask(seen)).reshape(4, 5, 32, 8, 32).any((2, 4))
    assert not (visible & ~np.asarray(meet)).any()
    todo = work(meet)
    pairs = np.asarray(todo.pairs)[: int(todo.steps)]
    visited = np.zeros(meet.size, int)
    np.add.at(visited, pairs, 1)
    visited = visited.reshape(meet.shape)
    assert (np.diff(pairs) > 0).all() and visited.max() == 1 and (visited[visible] == 1).all()
    needed = visible[:2].sum() + (~visible[:2].any(2)).sum()
    assert visited[:2].sum() == needed  # in packed rows no tile is visited for nothing
    assert (visited[3].sum(1) == 1).all()  # a row that sees nothing is written all the same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (1, 8, 3, 128)}, "H a multiple of K"),
        ({"query_segments_BT": jnp.ones((1, 8), jnp.int32)}, "give both"),
        ({"implementation": "pallas_tpu"}, "it runs on a tpu"),
        ({"implementation": "cudnn"}, "it takes bfloat16"),
    ],
)
def test_refusals(change: dict, message: str) -> None:
    shapes = {name: change.pop(name, (1, 8, 4, 128)) for name in ("q", "k", "v")}
    with pytest.raises(ValueError, match=message):
        attention(*(jnp.zeros(shape) for shape in shapes.values()), **change)
