"""Whole steps: rewards of groups, NaN exactly where no verdict was had, and samples that wait do so together."""

import threading

import numpy as np
import pytest

from cascade_jax.reward import VERIFIERS, Verdict, verify_groups
from cascade_jax.reward.math import MathAnswer


def test_rewards_of_groups_of_several_kinds(row, sample, group):
    verifiers = {kind: VERIFIERS[kind]() for kind in ("mcqa", "math")}
    choice = row("mcqa", options=[{"A": "x"}, {"B": "y"}], expected_answer="A")
    broken = row("mcqa", options=[{"A": "x"}, {"B": "y"}], expected_answer="C")
    number = row("math", expected_answer="12")
    groups = [
        group(choice, sample(r"\boxed{A}"), sample(r"\boxed{B}"), sample("")),
        group(broken, sample(r"\boxed{A}"), sample(r"\boxed{B}"), sample("")),
        group(number, sample(r"\boxed{12}"), sample(r"\boxed{13}"), sample(None)),
    ]
    rewards, verdicts = verify_groups(verifiers, groups)
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards, [[1, 0, 0], [np.nan] * 3, [1, 0, np.nan]])
    assert [[v.no_verdict is None for v in line] for line in verdicts] == (~np.isnan(rewards)).tolist()
    assert isinstance(verdicts[0][0], Verdict)


def test_what_it_refuses(row, sample, group):
    with pytest.raises(ValueError, match="math"):
        verify_groups({"mcqa": VERIFIERS["mcqa"]()}, [group(row("math"), sample("x"))])
    uneven = [group(row("math", expected_answer="1"), *[sample("1")] * n) for n in (1, 2)]
    with pytest.raises(ValueError, match="size"):
        verify_groups({"math": MathAnswer()}, uneven)
    rewards, verdicts = verify_groups({}, [])
    assert rewards.size == 0 and verdicts == []


def test_samples_that_wait_wait_together(row, sample, group):
    class Meeting:
        def __init__(self):
            self.barrier = threading.Barrier(4)

        def verify(self, row, sample):
            self.barrier.wait(timeout=30)  # passed only when four are here at once
            return Verdict(float(sample.reply.content))

    groups = [group(row("meeting"), *map(sample, texts)) for texts in (["1", "2"], ["3", "4"])]
    assert verify_groups({"meeting": Meeting()}, groups)[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_every_kind_constructs_and_settings_reach_it():
    assert set(VERIFIERS) >= {"instruction_following", "mcqa", "tool_call", "structured_output", "math"}
    for make in VERIFIERS.values():
        make()
    assert VERIFIERS["tool_call"](grading="f1").grading == "f1"
    with pytest.raises(TypeError):
        VERIFIERS["mcqa"](no_such_setting=1)
