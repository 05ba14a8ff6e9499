"""The local engine: order, shapes, versions, and a bounded number of compiled programs."""

import numpy as np
import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.rollout.sampler import decode, prefill, spread

from .conftest import as_prompt, random_ids, random_params

SAMPLING = SamplingConfig(max_tokens=6)
STOP_IDS = (5, 17, 40, 41, 42, 43, 44, 45, 46, 47)


def make_engine(network, **settings):
    return LocalEngine(*network, stop_ids=STOP_IDS, **{"buckets": (8, 16), **settings})


def generate(engine, prompts, *, samples=2, seed=0):
    return engine.generate([as_prompt(ids) for ids in prompts], SAMPLING, samples_per_prompt=samples, seed=seed)


def test_groups_come_in_the_order_of_the_prompts(llama):
    prompts = random_ids(llama[0], [15, 3, 16, 1])
    groups = generate(make_engine(llama, version=3), prompts)
    assert [group.prompt.ids.tolist() for group in groups] == [ids.tolist() for ids in prompts]
    samples = [sample for group in groups for sample in group.samples]
    assert len(samples) == 8
    for s in samples:
        n = len(s.ids)
        assert 1 <= n <= 6 and s.ids.dtype == np.int32 and s.logprobs.dtype == np.float32
        assert s.logprobs.shape == s.mask.shape == (n,) and s.mask.all() and (s.logprobs < 0).all()
        assert not np.isin(s.ids[:-1], STOP_IDS).any()
        assert s.stop_reason == ("stop" if s.ids[-1] in STOP_IDS else "length")
        assert s.stop_reason == "stop" or n == 6
        assert s.version == 3
    assert {s.stop_reason for s in samples} == {"stop", "length"}


def test_tokens_depend_on_seed_and_place_alone(llama):
    """Neither the neighbours, nor the size of the batches that the engine cuts."""
    prompts, others = random_ids(llama[0], [15, 3, 9, 1]), random_ids(llama[0], [2, 8, 9, 12], seed=1)
    groups = generate(make_engine(llama), prompts)
    assert_equal(groups[2], generate(make_engine(llama), [*others[:2], prompts[2], others[3]])[2])
    for whole, cut in zip(groups, generate(make_engine(llama, batch=4), prompts), strict=True):
        assert_equal(whole, cut)
    with pytest.raises(AssertionError):
        assert_equal(groups[2], generate(make_engine(llama), prompts, seed=1)[2])


def assert_equal(a, b):
    for one, two in zip(a.samples, b.samples, strict=True):
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=2e-5)


def test_ragged_prompts_compile_nothing_new(llama):
    engine = make_engine(llama)
    generate(engine, random_ids(llama[0], [8] * 4))
    generate(engine, random_ids(llama[0], [16] * 4))
    programs = [step._cache_size() for step in (prefill, spread, decode)]
    rng = np.random.default_rng(0)
    for seed in range(5):
        lengths = rng.integers(1, 17, size=rng.integers(3, 5)).tolist()
        generate(engine, random_ids(llama[0], lengths), seed=seed)
    engine.load(random_params(llama[0], seed=1), version=1)
    generate(engine, random_ids(llama[0], [2, 3, 16, 7]))
    assert [step._cache_size() for step in (prefill, spread, decode)] == programs


def test_load_changes_weights_and_version(llama):
    config, _ = llama
    engine, prompts = make_engine(llama), random_ids(config, [4, 7, 6])
    other = random_params(config, seed=1)
    before = generate(engine, prompts)
    engine.load(other, version=9)
    after = generate(engine, prompts)
    for group, fresh in zip(after, generate(make_engine((config, other)), prompts), strict=True):
        assert_equal(group, fresh)
    assert [s.version for group in after for s in group.samples] == [9] * 6
    assert any(
        a.ids.tolist() != b.ids.tolist()
        for x, y in zip(before, after, strict=True)
        for a, b in zip(x.samples, y.samples, strict=True)
    )


def test_no_prompts_give_no_groups(llama):
    assert generate(make_engine(llama), []) == []


@pytest.mark.parametrize("length", [0, 17])
def test_a_prompt_that_fits_no_bucket_is_refused(llama, length):
    prompts = random_ids(llama[0], [3, length])
    with pytest.raises(ValueError, match=f"Prompt 1 .* has {length} tokens, allowed are 1 to 16"):
        generate(make_engine(llama), prompts)
