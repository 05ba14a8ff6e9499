"""Group advantages against their definition in NumPy float64, and the cases that must be exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.advantage import group_advantages, groups_above, informative_groups, overlong_penalty


def by_definition(rewards, mask, *, normalize_std, leave_one_out, eps=1e-6):
    out = np.zeros(rewards.shape)
    for p, (row, live) in enumerate(zip(rewards.astype(np.float64), mask, strict=True)):
        members = [g for g in range(len(row)) if live[g] and not np.isnan(row[g])]
        values = row[members]
        if len(set(values)) < 2:
            continue
        for g in members:
            others = [row[h] for h in members if h != g]
            baseline = np.mean(others) if leave_one_out else values.mean()
            out[p, g] = (row[g] - baseline) / (values.std() + eps if normalize_std else 1.0)
    return out


@pytest.mark.parametrize("normalize_std", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_equals_the_definition(normalize_std, leave_one_out):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(40, 6)).astype(np.float32)
    rewards[::3] = rng.integers(0, 2, size=rewards[::3].shape)
    mask = rng.random(rewards.shape) < 0.7
    rewards[rng.random(rewards.shape) < 0.1] = np.nan
    options = {"normalize_std": normalize_std, "leave_one_out": leave_one_out}
    got = jax.jit(lambda r, m: group_advantages(r, mask_PG=m, **options))(rewards, mask)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, by_definition(rewards, mask, **options), rtol=2e-5, atol=2e-6)


def test_unit_std_and_zero_mean():
    advantages = np.asarray(group_advantages(jnp.array([[1.0, 0, 0, 0, 1, 0, 1, 1.5]])), np.float64)
    assert abs(advantages.sum()) < 1e-5
    assert abs(advantages.std() - 1) < 1e-5


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("eps", [1e-6, 0.0])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.7, 1e6, 0.0])
def test_equal_rewards_give_exactly_zero(value, eps, leave_one_out):
    rewards = jnp.full((1, 7), value, jnp.float32)
    assert (group_advantages(rewards, eps=eps, leave_one_out=leave_one_out) == 0).all()
    assert (group_advantages(rewards, normalize_std=False, leave_one_out=leave_one_out) == 0).all()
    assert not informative_groups(rewards).any()


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_one_member_gives_exactly_zero(leave_one_out):
    alone = group_advantages(jnp.array([[3.0]]), leave_one_out=leave_one_out)
    left = group_advantages(
        jnp.array([[3.0, 1.0, jnp.nan]]), mask_PG=jnp.array([[True, False, True]]), leave_one_out=leave_one_out
    )
    assert (alone == 0).all() and (left == 0).all()


@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_rewards_change_nothing(hidden):
    rewards = np.array([[1.0, 0.0, hidden, 0.5], [hidden, hidden, hidden, hidden]], np.float32)
    mask = np.array([[True, True, False, True], [False] * 4])
    got = group_advantages(rewards, mask_PG=mask)
    want = group_advantages(np.array([[1.0, 0.0, 0.5]], np.float32))
    np.testing.assert_array_equal(got[0, [0, 1, 3]], want[0])
    assert got[0, 2] == 0 and (got[1] == 0).all()
    np.testing.assert_array_equal(informative_groups(rewards, mask_PG=mask), [True, False])


def test_a_reward_that_is_no_number_counts_as_masked():
    rewards = np.array([[1.0, np.nan, 0.0], [1.0, np.nan, 1.0]], np.float32)
    masked = group_advantages(rewards, mask_PG=~np.isnan(rewards))
    np.testing.assert_array_equal(group_advantages(rewards), masked)
    np.testing.assert_array_equal(informative_groups(rewards), [True, False])


def test_large_offsets_cost_no_precision():
    small = np.array([[0.0, 0.5, 1.0, 0.25]], np.float32)
    np.testing.assert_array_equal(group_advantages(small + 2**20), group_advantages(small))


def test_a_truncated_sample_keeps_its_place_in_the_baseline():
    rewards, truncated = np.array([[1.0, 1.0, 0.7, 1.0]]), np.array([[False, False, True, False]])
    assert not informative_groups(np.where(truncated, np.nan, rewards)).any()
    penalised = overlong_penalty(rewards, truncated)
    np.testing.assert_array_equal(penalised, [[1.0, 1.0, 0.0, 1.0]])
    assert group_advantages(penalised)[0, 2] < 0 < group_advantages(penalised)[0, 0]


def test_the_floor_of_a_group_is_exceeded_by_one_reward_or_not_at_all():
    rewards = np.array([[0.5, 0.2], [0.51, 0.0], [np.nan, 0.3], [np.nan, 1.0], [np.nan, np.nan]], np.float32)
    np.testing.assert_array_equal(groups_above(rewards, 0.5), [False, True, False, True, False])
