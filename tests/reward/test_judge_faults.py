"""A judge with faults, served: noise, position bias, malformed replies, delays, and what a group makes of them."""

import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cascade_jax.config import JudgeConfig
from cascade_jax.reward import judge_server, rule_judge
from cascade_jax.reward.judge import Comparison, Judge
from cascade_jax.reward.judge_server import Faults
from cascade_jax.reward.preference import preference_groups

MESSAGES = ({"role": "user", "content": "Describe a kite."},)
PAIRS = [Comparison(MESSAGES, "a kite " * (i % 7 + 1), "Sure, a kite " * (i // 7 + 1)) for i in range(49)]
EXACT = [rule_judge.compare(MESSAGES, pair.response_1, pair.response_2) for pair in PAIRS]


def margins(faults, *, wire="genrm", **settings):
    """The first score minus the second, of all pairs."""
    served = judge_server.running(faults=faults)
    with served as server, Judge(JudgeConfig(url=server.url, wire=wire, **settings)) as judge:
        scores = [judgement.scores for judgement in judge.compare(PAIRS)]
    return np.array([np.nan if found is None else found.score_1 - found.score_2 for found in scores])


@pytest.mark.parametrize("wire", ["genrm", "chat"])
def test_without_faults_the_rule_comes_through(wire):
    expected = [scores["score_1"] - scores["score_2"] for scores in EXACT]
    np.testing.assert_allclose(margins(Faults(), wire=wire), expected, atol=1e-6)


@pytest.mark.parametrize("wire", ["genrm", "chat"])
def test_noise_and_bias_bend_scores(wire):
    exact, noisy, again, biased = (
        margins(faults, wire=wire) for faults in (Faults(), Faults(noise=0.5), Faults(noise=0.5), Faults(0.0, 0.75))
    )
    np.testing.assert_array_equal(noisy, again)
    assert 0.2 < np.std(noisy - exact) < 1.2 and abs(np.mean(noisy - exact)) < 0.4
    assert (biased >= exact).all() and np.mean(biased - exact) > 0.5


def test_malformed_replies_are_retried():
    assert np.isfinite(margins(Faults(malformed=0.5), retries=12)).all()
    assert 5 < np.isnan(margins(Faults(malformed=0.5), retries=0)).sum() < 44
    assert np.isnan(margins(Faults(malformed=1.0), retries=0)).all()


def test_delays_are_waited_for_together_or_time_out():
    start = time.monotonic()
    assert np.isfinite(margins(Faults(delay=0.05), concurrency=16)).all()
    assert 0.15 <= time.monotonic() - start < 49 * 0.05
    assert np.isnan(margins(Faults(delay=0.5), timeout=0.1, retries=0, concurrency=49)).all()


def test_a_malformed_judge_trains_nobody_and_is_counted(row, sample, group):
    one = group(row(ask="Describe a kite."), *map(sample, ["a kite", "Sure, a kite"]))
    served = judge_server.running(faults=Faults(malformed=1.0))
    with served as server, Judge(JudgeConfig(url=server.url, retries=0)) as judge:
        rewards, (verdicts,) = preference_groups(judge, [one], seed=0)
    assert np.isnan(rewards).all() and [verdict.info["unreadable"] for verdict in verdicts] == [1, 1]


def test_the_command_takes_the_faults():
    command = [sys.executable, "-m", "launch.serve", "--judge", "--malformed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            url = re.search(r"http://\S+", process.stdout.readline())[0]
            with Judge(JudgeConfig(url=url, retries=0)) as judge:
                assert judge.compare(PAIRS[:1])[0].unreadable
        finally:
            watchdog.cancel()
            process.kill()
