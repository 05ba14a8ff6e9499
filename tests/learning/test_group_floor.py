"""recipe.md 12: where none of a prompt's answers scores above 0.5, the prompt leaves no trace in the update."""

from pathlib import Path

import numpy as np
import optax
import pytest

from cascade_jax.config import ConfigError, RLConfig, StageConfig
from cascade_jax.config.build import build
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import generate, train_tokenizer
from cascade_jax.domains import Domain
from cascade_jax.reward import Verdict
from cascade_jax.stages.context import Context
from cascade_jax.stages.rollouts import collect
from cascade_jax.types import Group, Sample

REWARDS = [[0.5, 0.0], [0.6, 0.0], [-1.0, 0.4], [1.0, 1.0]]  # by prompt and sample


class Written:
    """An engine whose sample i of prompt p is the ids (p, i)."""

    def generate(self, prompts, sampling, *, samples_per_prompt, seed):
        def sample(p, i):
            return Sample(np.array([p, i], np.int32), np.zeros(2, np.float32), np.ones(2, bool), "stop", 0)

        return [
            Group(prompt, tuple(sample(p, i) for i in range(samples_per_prompt))) for p, prompt in enumerate(prompts)
        ]


class Table:
    """The reward that REWARDS has for the sample."""

    def verify(self, row, sample):
        p, i = sample.ids
        return Verdict(REWARDS[p][i])


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("floor") / "tokenizer.model"))


def kept(chat, **rl):
    rows = generate("math", "train", 4)
    stage = StageConfig("rl", 1, {"repair": 1.0}, 64, rl=RLConfig(prompts=4, samples=2, **rl))
    context = Context(
        name="swe",
        stage=stage,
        model=None,
        chat=chat,
        engine=Written(),
        domains={"repair": Domain("repair", {"train": rows}, "math", False, Table())},
        longest_prompt=10_000,
        seed=0,
        optimizer=optax.identity(),
        frozen=None,
        directory=Path(),
        position=None,
        emit=print,
        stop_asked=lambda: False,
    )
    context.timer.start()
    rollouts = collect(context, iter([[("repair", row) for row in rows]] * 10), step=0)
    return [int(group.samples[0].ids[0]) for group in rollouts.groups]


def test_without_a_floor_every_group_with_differing_rewards_stays(chat):
    assert kept(chat) == [0, 1, 2]


def test_groups_without_a_reward_above_the_floor_are_masked(chat):
    assert kept(chat, group_floor=0.5) == [1]


def test_the_floor_masks_the_term_of_the_reference_too(chat):
    assert kept(chat, kl_coef=0.1) == [0, 1, 2, 3]
    assert kept(chat, kl_coef=0.1, group_floor=0.5) == [1, 3]


def test_the_dynamic_filter_draws_until_enough_groups_exceed_the_floor(chat):
    assert kept(chat, group_floor=0.5, dynamic_filter=True) == [1, 1, 1, 1]


def test_the_setting_is_read_from_a_config():
    assert build(RLConfig, {"group_floor": 0.5}, "rl").group_floor == 0.5
    with pytest.raises(ConfigError, match="group_floor"):
        build(RLConfig, {"group_floor": "half"}, "rl")
