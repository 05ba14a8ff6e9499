"""What test_eight_devices.py runs: experts on 2, 4 and 8 devices against all of them on one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from cascade_jax.mesh import make_mesh
from cascade_jax.model.exchange import expert_parallel
from cascade_jax.model.experts import Experts, chosen_experts
from cascade_jax.model.linear import LowRank
from cascade_jax.model.streams import room

N, D, F, E, K = 61, 10, 6, 16, 3  # N tokens a rank
EXPERTS, TOKENS = P("expert"), P(("data", "expert"))


def at_random(rng, tokens, *, preference=0.0):
    """All experts in an order of their own for every token; earlier ones are preferred."""
    return np.argsort(rng.gumbel(size=(tokens, E)) + preference * np.arange(E), axis=1)


def the_same(tokens, *, first):
    """All tokens choose the expert `first` and those after it."""
    return np.tile(np.roll(np.arange(E), -first), (tokens, 1))


ROUTES = {
    "balanced": at_random,
    "skewed": functools.partial(at_random, preference=0.5),
    "all to the first": lambda rng, tokens: the_same(tokens, first=0),
    "all to the last and the first": lambda rng, tokens: the_same(tokens, first=E - 1),
    "half to the same": lambda rng, tokens: np.concatenate(
        [the_same(tokens // 2, first=4), at_random(rng, tokens - tokens // 2)]
    ),
}


def simulated(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """lax.ragged_all_to_all by its documentation, for the CPU, which has none. NaN where its rules are broken."""
    me = lax.axis_index(axis_name)
    rows, reads, sizes, writes = (
        lax.all_gather(a, axis_name) for a in (operand, input_offsets, send_sizes, output_offsets)
    )
    place = jnp.arange(len(output))
    for sender in range(len(recv_sizes)):
        read, size, write = reads[sender, me], sizes[sender, me], writes[sender, me]
        allowed = (size == recv_sizes[sender]) & (read + size <= len(operand)) & (write + size <= len(output))
        inside = (place >= write) & (place < write + size)
        got = jnp.where(allowed, rows[sender].at[read + place - write].get(mode="clip"), jnp.nan)
        output = jnp.where(inside[:, None], got, output)
    return output


@pytest.fixture(autouse=True)
def ragged_all_to_all_on_the_cpu(monkeypatch):
    monkeypatch.setattr(lax, "ragged_all_to_all", simulated)


def inputs(route, *, tokens, gated=True, adapted=False, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    up = LowRank(normal(E, D, F), normal(E, D, 2), normal(E, 2, F), 0.5) if adapted else normal(E, D, F)
    experts = Experts(up, normal(E, F, D), normal(E, D, F) if gated else None)
    ids = ROUTES[route](rng, tokens)[:, :K].astype(np.int32)
    return experts, normal(tokens, D), ids, rng.uniform(0.1, 1, (tokens, K)).astype(np.float32), normal(tokens, D)


def with_gradients(function):
    """jit((experts, x, ids, weights, cotangent) -> (value, gradients by experts, x, weights))"""

    def run(experts, x, ids, weights, cotangent):
        value, pull = jax.vjp(lambda experts, x, weights: function(experts, x, ids, weights), experts, x, weights)
        return value, pull(cotangent)

    return jax.jit(run)


on_one = with_gradients(lambda experts, x, ids, weights: chosen_experts(experts, x, ids.T, weights.T))


@functools.cache
def split(exchange, *, expert, tensor=1, data=1, gated=True, remat=False):
    mesh = make_mesh(data=data, expert=expert, tensor=tensor, devices=jax.devices()[: data * expert * tensor])
    wide, tall = P("expert", None, "tensor"), P("expert", "tensor", None)
    matrices = Experts(wide, tall, wide if gated else None) if tensor > 1 else EXPERTS

    def rank(experts, x, ids, weights):
        out = expert_parallel(experts, x, ids.T, weights.T, exchange=exchange)
        return jax.lax.psum(out, "tensor") if tensor > 1 else out

    sides = {"in_specs": (matrices, TOKENS, TOKENS, TOKENS), "out_specs": TOKENS}
    function = jax.shard_map(rank, mesh=mesh, check_vma=False, **sides)
    return with_gradients(jax.checkpoint(function) if remat else function)


def assert_equal(got, want):
    def same(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())

    jax.tree.map(same, got, want)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("exchange", "expert"), [("dense", 2), ("dense", 8), ("ragged", 8), ("gather", 4)])
def test_values_and_gradients_equal_those_of_one_device(exchange, expert, route):
    given = inputs(route, tokens=expert * N, adapted=exchange == "gather")
    assert_equal(split(exchange, expert=expert)(*given), on_one(*given))


@pytest.mark.parametrize("expert", [2, 4, 8])
def test_balanced_routing_fits_into_one_round_and_the_worst_above_does_not(expert):
    most = room(N, ranks=expert, experts=E // expert, k=K)
    to_first = (the_same(N, first=0)[:, :K] // (E // expert) == 0).sum()
    assert to_first > most.slots

    tokens, many = 8192, 128
    most = room(tokens, ranks=expert, experts=many // expert, k=6)
    chosen = np.argsort(np.random.default_rng(0).random((tokens, many)), axis=1)[:, :6]
    slots = (chosen[..., None] // (many // expert) == np.arange(expert)).sum(1)
    assert ((slots > 0).sum(0) <= most.tokens).all() and (slots.sum(0) <= most.slots).all()
    assert most.tokens <= 1.35 * (slots > 0).sum(0).mean() and most.slots <= 1.35 * slots.sum(0).mean()


def test_rounds_under_a_whole_mesh():
    """Two groups of ranks, one of which needs more rounds; experts that are split themselves; rematerialised."""
    given = inputs("half to the same", tokens=4 * N, gated=False)
    got = split("dense", expert=2, tensor=2, data=2, gated=False, remat=True)(*given)
    assert_equal(got, on_one(*given))


def test_bfloat16_is_as_exact_as_on_one_device():
    given = inputs("all to the last and the first", tokens=8 * N)
    exact = on_one(*given)
    half = (given[0], given[1].astype(jnp.bfloat16), *given[2:])

    def error(a, b):
        return np.linalg.norm(np.asarray(a, np.float32) - b) / np.linalg.norm(b)

    got, want = (jax.tree.map(error, run(*half), exact) for run in (split("dense", expert=8), on_one))
    jax.tree.map(lambda a, b: np.testing.assert_array_less(a, 1.5 * b), got, want)


@functools.cache
def compiled_text(exchange, expert):
    given = inputs("balanced", tokens=expert * N, adapted=exchange == "gather")
    return split(exchange, expert=expert).lower(*given).compile().as_text()


@pytest.mark.parametrize(("exchange", "expert"), [("dense", 8), ("ragged", 8), ("gather", 4)])
def test_no_row_is_scattered(exchange, expert):
    text = compiled_text(exchange, expert)
    scattered = re.findall(r"= (\S+) scatter\(", text)
    assert scattered
    assert all(re.fullmatch(r"s32\[\d+\]\S*", shape) for shape in scattered), scattered


@pytest.mark.parametrize(("exchange", "expert"), [("dense", 8), ("gather", 4)])
def test_no_collective_is_larger_than_its_buffer(exchange, expert):
    rows = {"dense": expert * room(N, ranks=expert, experts=E // expert, k=K).tokens, "gather": expert * N}[exchange]
    assert exchange == "gather" or rows < 0.8 * expert * N
    text = compiled_text(exchange, expert)
    moved = re.findall(r"= (.*?) (?:all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute)[\w-]*\(", text)
    shapes = [re.findall(r"\[([\d,]*)\]", shape) for shape in moved]
    elements = [sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in shape) for shape in shapes]
    assert max(elements) == rows * D


def test_ragged_lowers_for_a_tpu(monkeypatch):
    monkeypatch.undo()
    given = inputs("balanced", tokens=8 * N)
    function = split.__wrapped__("ragged", expert=8)
    text = function.trace(*given).lower(lowering_platforms=("tpu",)).as_text()
    assert "ragged_all_to_all" in text
