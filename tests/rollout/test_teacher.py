"""Scoring with teachers: routing, packing and unpacking against one plain forward pass per sequence."""

import numpy as np
import pytest

from cascade_jax.teacher import score, teacher_logprobs
from cascade_jax.types import Sequence

from .conftest import full_logits, random_ids, random_params, slow_distribution

LENGTHS = [9, 4, 16, 1, 2, 12, 5, 8, 3]
DOMAINS = ["math", "mcqa", "tools", "math", "mcqa", "mcqa", "tools", "math", "math"]


def direct(config, params, ids, **settings):
    """(T,) by a full forward pass of one sequence; 0 for the first token."""
    p = [slow_distribution(logits, **settings) for logits in full_logits((config, params), ids)[:-1]]
    with np.errstate(divide="ignore"):
        return np.append(0.0, np.log([row[token] for row, token in zip(p, ids[1:], strict=True)]))


def test_each_sequence_is_scored_by_its_own_teacher(network):
    config, first = network
    sequences = [
        Sequence(ids, np.ones(len(ids), bool), {"sampler_logprobs": np.zeros(len(ids))})
        for ids in random_ids(config, LENGTHS)
    ]
    second = random_params(config, seed=1)
    teachers = {"math": first, "mcqa": second, "tools": first}
    scored = score(config, teachers, sequences, DOMAINS, length=24, rows=4, temperature=0.7)
    assert len(scored) == len(sequences)
    for sequence, domain, logprobs in zip(sequences, DOMAINS, scored, strict=True):
        expected = direct(config, teachers[domain], sequence.ids, temperature=0.7)
        assert logprobs.dtype == np.float32
        np.testing.assert_allclose(logprobs, expected, atol=2e-5)


def test_one_program_serves_all_teachers_and_calls(llama):
    config, first = llama
    sequences = [Sequence(ids, np.ones(len(ids), bool)) for ids in random_ids(config, LENGTHS)]
    second = random_params(config, seed=1)
    score(config, {"math": first}, sequences[:1], ["math"], length=24, rows=4)
    programs = teacher_logprobs._cache_size()
    teachers = {"math": first, "mcqa": second, "tools": second}
    score(config, teachers, sequences, DOMAINS, length=24, rows=4)
    score(config, teachers, sequences[3:], DOMAINS[3:], length=24, rows=4)
    assert teacher_logprobs._cache_size() == programs


def test_a_token_that_the_teacher_would_not_draw_has_no_finite_log_prob(llama):
    config, params = llama
    [ids] = random_ids(config, [16])
    [logprobs] = score(
        config, {"math": params}, [Sequence(ids, np.ones(16, bool))], ["math"], length=24, rows=4, top_k=3
    )
    expected = direct(config, params, ids, top_k=3)
    np.testing.assert_array_equal(np.isfinite(logprobs), np.isfinite(expected))
    assert np.isinf(logprobs).any()


def test_a_domain_without_teacher_is_refused(llama):
    config, params = llama
    one = Sequence(np.array([1, 2], np.int32), np.ones(2, bool))
    with pytest.raises(ValueError, match=r"\['code'\] have no teacher"):
        score(config, {"math": params}, [one], ["code"], length=16)


def test_nothing_to_score(llama):
    config, params = llama
    assert score(config, {"math": params}, [], [], length=16) == []
