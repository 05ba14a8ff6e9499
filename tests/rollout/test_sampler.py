"""Sampled tokens and their log-probs against the trainer's full forward pass, and against each other."""

import jax
import numpy as np
import pytest

from cascade_jax.rollout.sampler import sample
from cascade_jax.teacher import score
from cascade_jax.types import Sequence

from .conftest import full_logits, padded, random_ids, slow_distribution

LENGTHS = [9, 4, 1]
SETTINGS = [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}]


def draw(network, prompts, *, bucket=12, seed=0, index=None, samples=4, max_tokens=10, **settings):
    config, params = network
    ids, lengths = padded(prompts, bucket)
    drawn = sample(
        config,
        params,
        ids,
        lengths,
        key=jax.random.key(seed),
        index_P=np.arange(len(prompts)) if index is None else np.array(index),
        samples_per_prompt=samples,
        max_tokens=max_tokens,
        **settings,
    )
    return jax.device_get(drawn)


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "top-p"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logprobs_are_the_trainers(network, settings, seed):
    config, params = network
    prompts = random_ids(config, LENGTHS, seed=seed)
    drawn = draw(network, prompts, seed=seed, **settings)
    P, G, N = drawn.ids_PGN.shape
    sequences = [
        Sequence(np.concatenate([prompts[p], drawn.ids_PGN[p, g]]), np.ones(len(prompts[p]) + N, bool))
        for p in range(P)
        for g in range(G)
    ]
    scored = score(config, {"own": params}, sequences, ["own"] * (P * G), length=24, rows=4, **settings)
    trained = np.stack([logprobs[-N:] for logprobs in scored])
    gap = np.abs(trained - drawn.logprobs_PGN.reshape(P * G, N))
    assert gap.max() < 2e-5
    assert gap.mean() < 2e-6
    assert len(np.unique(drawn.ids_PGN)) > N  # varied tokens, not one that repeats


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.8, "top_k": 40}], ids=["plain", "cut"])
def test_first_tokens_follow_the_softmax(llama, settings):
    """Pearson's chi-square of 20,000 draws; its standard deviation is sqrt(2 df)."""
    config, _ = llama
    count = 20_000
    [prompt] = random_ids(config, [6])
    drawn = draw(llama, [prompt], samples=count, max_tokens=1, **settings)
    p = slow_distribution(full_logits(llama, prompt)[-1], **settings)
    observed = np.bincount(drawn.ids_PGN[0, :, 0], minlength=config.vocab_size)
    assert observed[p == 0].sum() == 0
    often = count * p >= 5
    expected = np.append(count * p[often], count * p[~often].sum())
    observed = np.append(observed[often], observed[~often].sum())
    expected, observed = expected[expected > 0], observed[expected > 0]
    freedom = len(expected) - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_greedy_is_the_argmax_of_the_full_forward(network):
    config, _ = network
    prompts = random_ids(config, LENGTHS)
    drawn = draw(network, prompts, temperature=0.0)
    for row, prompt in enumerate(prompts):
        ids = list(prompt)
        for n in range(10):
            logits = full_logits(network, ids)[-1]
            ids.append(int(logits.argmax()))
            expected = logits.max() - np.logaddexp.reduce(logits)
            assert drawn.ids_PGN[row, 0, n] == ids[-1]
            assert drawn.logprobs_PGN[row, 0, n] == pytest.approx(expected, abs=2e-5)


def test_a_group_shares_its_prefill(hybrid):
    """The first sample of a group of four is the sample of a group of one, and samples of a group differ."""
    prompts = random_ids(hybrid[0], LENGTHS)
    group, single = draw(hybrid, prompts, samples=4), draw(hybrid, prompts, samples=1)
    np.testing.assert_array_equal(group.ids_PGN[:, 0], single.ids_PGN[:, 0])
    np.testing.assert_allclose(group.logprobs_PGN[:, 0], single.logprobs_PGN[:, 0], atol=2e-5)
    for row in group.ids_PGN:
        assert len({tuple(ids) for ids in row}) == 4


def test_other_prompts_change_nothing(network):
    """Bitwise without experts; experts multiply other rows in one product, so there log-probs may round otherwise."""
    config, _ = network
    prompts, others = random_ids(config, [7, 5, 8]), random_ids(config, [12, 5, 2], seed=1)
    here = draw(network, prompts)
    there = draw(network, [others[0], prompts[1], others[2]])
    np.testing.assert_array_equal(here.ids_PGN[1], there.ids_PGN[1])
    if "E" in config.pattern:
        np.testing.assert_allclose(here.logprobs_PGN[1], there.logprobs_PGN[1], atol=2e-6)
    else:
        np.testing.assert_array_equal(here.logprobs_PGN[1], there.logprobs_PGN[1])


def test_place_and_bucket_change_nothing(hybrid):
    """The same prompt under the same index, in another row, another batch size and another bucket."""
    prompts = random_ids(hybrid[0], [7, 5, 8])
    here = draw(hybrid, prompts)
    there = draw(hybrid, [prompts[2], prompts[1]], index=[2, 1], bucket=20)
    np.testing.assert_array_equal(here.ids_PGN[[2, 1]], there.ids_PGN)
    np.testing.assert_allclose(here.logprobs_PGN[[2, 1]], there.logprobs_PGN, atol=2e-5)


def test_randomness_comes_from_seed_and_index(llama):
    prompts = random_ids(llama[0], [5]) * 3
    first, again, other = draw(llama, prompts), draw(llama, prompts), draw(llama, prompts, seed=1)
    np.testing.assert_array_equal(first.ids_PGN, again.ids_PGN)
    np.testing.assert_array_equal(first.logprobs_PGN, again.logprobs_PGN)
    assert (first.ids_PGN != other.ids_PGN).any()
    assert (first.ids_PGN[0] != first.ids_PGN[1]).any()  # equal prompts, other index


def test_stop_ids_end_a_sample(llama):
    """A sample is that of a run without stop ids, up to and with the first stop id."""
    config, _ = llama
    prompts = random_ids(config, LENGTHS)
    stop_ids = tuple(range(0, config.vocab_size, 7))
    free, stopped = draw(llama, prompts), draw(llama, prompts, stop_ids=stop_ids)
    is_stop = np.isin(free.ids_PGN, stop_ids)
    lengths = np.where(is_stop.any(-1), is_stop.argmax(-1) + 1, 10)
    np.testing.assert_array_equal(stopped.lengths_PG, lengths)
    np.testing.assert_array_equal(stopped.stopped_PG, is_stop.any(-1))
    assert 0 < stopped.stopped_PG.sum() < stopped.stopped_PG.size
    inside = np.arange(10) < lengths[..., None]
    np.testing.assert_array_equal(stopped.ids_PGN, np.where(inside, free.ids_PGN, 0))
    np.testing.assert_allclose(stopped.logprobs_PGN, np.where(inside, free.logprobs_PGN, 0), atol=2e-6)


def test_an_empty_row_draws_nothing(llama):
    prompts = random_ids(llama[0], [5, 0, 7])
    drawn, full = draw(llama, prompts), draw(llama, [prompts[0], prompts[2], prompts[2]])
    assert (drawn.lengths_PG == [[10], [0], [10]]).all()
    assert not drawn.ids_PGN[1].any() and not drawn.logprobs_PGN[1].any() and not drawn.stopped_PG.any()
    np.testing.assert_array_equal(drawn.ids_PGN[[0, 2]], full.ids_PGN[[0, 2]])
