"""The streams: exact mixtures, whole epochs, and positions that resume exactly, in another process too."""

import json
import subprocess
import sys
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from cascade_jax.data.pipeline import Mixture, prompts, sft_batches
from cascade_jax.types import Row, Sequence

SIZES = {"if": 50, "math": 7, "mcqa": 1}
WEIGHTS = {"if": 0.5, "math": 0.3, "mcqa": 0.2}


def rows(domain: str, count: int) -> list[Row]:
    return [Row(f"{domain}-{i}", "math", ({"role": "user", "content": str(i)},)) for i in range(count)]


def stream(seed: int = 0, batch: int = 4):
    return prompts({name: rows(name, n) for name, n in SIZES.items()}, WEIGHTS, seed=seed, batch=batch)


def sequences(count: int, longest: int = 20, seed: int = 0) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, longest + 1, count)
    return [Sequence(np.full(n, 1 + i, np.int32), np.ones(n, bool)) for i, n in enumerate(sizes)]


def packed(seed: int = 0, rows: int = 4, length: int = 32):
    domains = {"a": sequences(40), "b": sequences(15, seed=1)}
    return sft_batches(domains, {"a": 2.0, "b": 1.0}, seed=seed, rows=rows, length=length)


def names(batch: list[tuple[str, Row]]) -> list[str]:
    return [row.id for _, row in batch]


def equal(a, b) -> bool:
    keys = ("ids_BT", "segments_BT", "targets_BT", "mask_BT")
    return all(np.array_equal(getattr(a, key), getattr(b, key)) for key in keys)


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (1, 1, 1), (0.1, 7, 3.3), (1e-3, 1.0, 2.0)])
def test_every_prefix_has_the_ratios(weights):
    mixture = Mixture(SIZES, dict(zip(SIZES, weights, strict=True)), seed=0)
    counts: Counter[str] = Counter()
    for n in range(3000):
        counts[mixture[n][0]] += 1
        for name, weight in zip(SIZES, weights, strict=True):
            assert abs(counts[name] - (n + 1) * weight / sum(weights)) < len(SIZES)
    scale = sum(WEIGHTS.values())
    whole = Counter(Mixture(SIZES, WEIGHTS, seed=0)[n][0] for n in range(10**9, 10**9 + 1000))
    assert whole == {name: round(1000 * weight / scale) for name, weight in WEIGHTS.items()}


def test_every_epoch_holds_each_row_once_in_another_order():
    mixture = Mixture({"a": 30}, {"a": 1.0}, seed=3)
    epochs = [[mixture[n][1] for n in range(30 * e, 30 * e + 30)] for e in range(4)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [mixture[n][1] for n in range(30)] == epochs[0]  # random access


def test_batches_of_one():
    ones = stream(batch=1)
    assert [name for _ in range(8) for name in names(next(ones))] == names(next(stream(batch=8)))


def test_seed_and_domain_decide_the_order():
    assert names(next(stream(0, 16))) == names(next(stream(0, 16)))
    assert names(next(stream(0, 16))) != names(next(stream(1, 16)))
    mixture = Mixture({"a": 30, "b": 30}, {"a": 1, "b": 1}, seed=0)
    order = {name: [i for n in range(60) for domain, i in [mixture[n]] if domain == name] for name in "ab"}
    assert order["a"] != order["b"]
    swapped = Mixture({"b": 30, "a": 30}, {"b": 1, "a": 1}, seed=0)
    assert [swapped[n] for n in range(60)] == [mixture[n] for n in range(60)]


def test_prompts_name_the_domain_of_each_row():
    for domain, row in next(stream(batch=32)):
        assert row.id.startswith(f"{domain}-")


def test_prompts_resume_exactly_at_every_position():
    whole, iterator = [names(b) for b in islice(stream(), 40)], stream()
    for n in range(30):
        state = json.loads(json.dumps(iterator.get_state()))
        resumed = stream()
        resumed.set_state(state)
        assert [names(b) for b in islice(resumed, 5)] == whole[n : n + 5]
        next(iterator)


def test_packed_batches_resume_exactly_at_every_position():
    whole, iterator, waited = list(islice(packed(), 30)), packed(), 0
    for n in range(25):
        state = json.loads(json.dumps(iterator.get_state()))
        waited += len(state["waiting"])
        resumed = packed()
        resumed.set_state(state)
        assert all(equal(a, b) for a, b in zip(islice(resumed, 4), whole[n:], strict=False))
        assert json.loads(json.dumps(iterator.get_state())) == state
        next(iterator)
    assert waited > 0


def test_packed_batches_lose_and_repeat_nothing():
    """What was drawn is in a batch or waits: n batches hold the first draws of the mixture, once each."""
    domain = sequences(60)
    iterator = sft_batches({"a": domain}, {"a": 1.0}, seed=0, rows=4, length=32)
    mixture, seen = Mixture({"a": 60}, {"a": 1.0}, seed=0), Counter()
    for _ in range(50):
        batch = next(iterator)
        assert batch.ids_BT.shape == (4, 32)
        for row in range(4):
            for segment in range(1, batch.segments_BT[row].max() + 1):
                ids = batch.ids_BT[row][batch.segments_BT[row] == segment]
                assert len(ids) == len(domain[ids[0] - 1].ids)
                seen[int(ids[0]) - 1] += 1
        state = iterator.get_state()
        drawn = Counter(mixture[n][1] for n in range(state["stream"]["next_index"]))
        assert seen + Counter(index for _, index in state["waiting"]) == drawn
        assert len(state["waiting"]) <= 4


def test_packed_batches_are_full():
    filled = [(batch.segments_BT > 0).mean() for batch in islice(packed(rows=8, length=64), 40)]
    assert np.mean(filled) > 0.95


def test_sequences_as_long_as_a_row():
    domain = [Sequence(np.full(8, i + 1, np.int32), np.ones(8, bool)) for i in range(5)]
    batches = list(islice(sft_batches({"a": domain}, {"a": 1.0}, seed=0, rows=5, length=8), 3))
    assert [sorted(batch.ids_BT[:, 0]) for batch in batches] == [[1, 2, 3, 4, 5]] * 3


def test_same_order_in_another_process():
    program = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("streams", sys.argv[1])
streams = importlib.util.module_from_spec(spec)
spec.loader.exec_module(streams)
iterator = streams.stream(5)
print(json.dumps([streams.names(next(iterator)) for _ in range(40)]))
print(json.dumps([next(streams.packed(5)).ids_BT.tolist()]))
"""
    arguments = [sys.executable, "-c", program, __file__]
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120, env=environment)
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == [names(b) for b in islice(stream(5), 40)]
    assert second == [next(packed(5)).ids_BT.tolist()]


def test_refusals():
    with pytest.raises(
        ValueError, match=r"^the domains \['a'\] and the weights of \['b'\] must have the same names\.$"
    ):
        prompts({"a": rows("a", 3)}, {"b": 1.0}, seed=0, batch=2)
    with pytest.raises(ValueError, match=r"^the domains \['a'\] have no rows; "):
        prompts({"a": []}, {"a": 1.0}, seed=0, batch=2)
    long = {"a": sequences(3, longest=5), "b": [Sequence(np.ones(40, np.int32), np.ones(40, bool))]}
    with pytest.raises(ValueError, match=r"^row 0 of domain 'b' has 40 tokens, but a packed row holds 1 to 32; "):
        next(sft_batches(long, {"a": 1.0, "b": 1.0}, seed=0, rows=2, length=32))
