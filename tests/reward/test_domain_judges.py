"""Which judge a domain asks: its own, the run's, or the rule judge that is served meanwhile."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from cascade_jax import domains
from cascade_jax.config import CascadeConfig, ConfigError, JudgeConfig, build
from cascade_jax.reward import judge_server
from cascade_jax.types import Group, Prompt


def config(**changed):
    def domain(task, **settings):
        source = {"kind": "generated", "task": task, "rows": 3, "difficulty": (0,)}
        return {"train": source, "validation": source} | settings

    stage = {"kind": "sft", "steps": 1, "domains": {"proof": 1.0}, "length": 32}
    given = {"name": "n", "order": ["s"], "stages": {"s": stage}, "model": "tiny"}
    named = {"proof": domain("proof"), "likes": domain("preference"), **changed}
    return build(CascadeConfig, given | {"domains": named})


@pytest.fixture
def group_of(sample):
    def make(domain, *texts):
        row = domain.rows["train"][0]
        return Group(Prompt(np.zeros(1, np.int32), row, domain.name), tuple(map(sample, texts)))

    return make


def test_the_rule_judge_is_served_for_every_kind(group_of):
    run = config()
    with domains.with_judge(domains.load(run), run.judge) as loaded:
        oracle = [loaded[name].rows["train"][0].extra["content"] for name in ("proof", "likes")]
        right = f"{oracle[0]['start']} {oracle[0]['goal']}"
        polite = f"Sure! The {oracle[1]['topics'][0]}."
        rewards, _ = domains.judge_groups(
            loaded, [group_of(loaded["proof"], right, "7"), group_of(loaded["likes"], polite, "No.")], seed=0
        )
    assert rewards[0].tolist() == [1.0, 0.0] and rewards[1, 0] > rewards[1, 1]


def test_a_domain_may_have_a_judge_of_its_own(group_of):
    source = {"kind": "generated", "task": "proof", "rows": 3, "difficulty": (0,)}
    domain = {"train": source, "validation": source}
    with (
        judge_server.running(reply=lambda messages: "POINTS: 5") as strict,
        judge_server.running(reply=lambda messages: "POINTS: 6") as mild,
    ):
        own = {"judge": {"url": strict.url}, "settings": {"gradings": 2}}
        run = config(own=domain | own)
        with domains.with_judge(domains.load(run), JudgeConfig(url=mild.url)) as loaded:
            asked = [loaded[name] for name in ("own", "proof")]
            assert asked[0].verifier.gradings == 2
            rewards, _ = domains.judge_groups(loaded, [group_of(domain, "1", "2") for domain in asked], seed=0)
    np.testing.assert_allclose(rewards, [[5 / 7, 5 / 7], [6 / 7, 6 / 7]])


def test_settings_of_preferences_are_checked_before_the_run():
    source = {"kind": "generated", "task": "preference", "rows": 3}
    likes = {"train": source, "validation": source, "settings": {"pairs": "some"}}
    with pytest.raises(ConfigError, match=r"domains.likes.settings.pairs='some' is not allowed"):
        domains.load(config(likes=likes))
    likes["settings"] = {"pairs": "circular", "both_orders": True}
    assert domains.load(config(likes=likes))["likes"].preference.both_orders


def test_a_preference_without_reference_cannot_be_scored_but_trained(group_of):
    run = config()
    with domains.with_judge(domains.load(run), run.judge) as loaded:
        group = group_of(loaded["likes"], "Sure! A kite.", "No.")
        row = dataclasses.replace(group.prompt.row, fields={})
        bare = Group(dataclasses.replace(group.prompt, row=row), group.samples)
        (scores,) = domains.score_groups(loaded["likes"], [bare])
        rewards, _ = domains.judge_groups(loaded, [bare], seed=0)
    assert all("no reference" in verdict.no_verdict for verdict in scores) and np.isfinite(rewards).all()


def test_as_many_samples_wait_for_a_judge_as_it_takes_at_a_time(group_of):
    now, most, lock = 0, 0, threading.Lock()

    def slow(messages):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.2)
        with lock:
            now -= 1
        return "POINTS: 7"

    with judge_server.running(reply=slow) as server:
        run = config()
        with domains.with_judge(domains.load(run), JudgeConfig(url=server.url, concurrency=40)) as loaded:
            rewards, _ = domains.judge_groups(loaded, [group_of(loaded["proof"], *map(str, range(60)))], seed=0)
    assert (rewards == 1).all() and 16 < most <= 40
