"""Episodes as a stage runs them, with texts in place of a network."""

import numpy as np
import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.rollout.episodes import run_episodes
from cascade_jax.types import Group, Sample


class Scripted:
    """An engine that writes, at turn t of the try at a place, the t-th text for it, and remembers what it was shown."""

    def __init__(self, chat, scripts):
        self.chat, self.scripts = chat, scripts
        self.prompts = [[] for _ in scripts]

    def generate(self, prompts, sampling, *, samples_per_prompt, seed):
        return [Group(prompt, (self._sample(prompt),)) for prompt in prompts]

    def _sample(self, prompt):
        shown = self.prompts[prompt.place]
        text = self.scripts[prompt.place][len(shown)] + "<|im_end|>"
        shown.append(self.chat.tokenizer.decode(prompt.ids))
        ids = np.array(self.chat.tokenizer.encode(text, specials=True), np.int32)
        return Sample(ids, np.zeros(len(ids), np.float32), np.ones(len(ids), bool), "stop", 0)


@pytest.fixture(scope="session")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


@pytest.fixture(scope="session")
def play(chat):
    def play(environment, row, *scripts, longest=20_000):
        """(verdict of each script, what was shown before its last turn, "" where there was none)"""
        engine = Scripted(chat, scripts)
        [group] = run_episodes(
            engine,
            chat,
            {"domain": environment},
            [make_prompt(chat, row, "domain", thinking=False)],
            SamplingConfig(max_tokens=4096),
            thinking={"domain": False},
            longest=longest,
            samples_per_prompt=len(scripts),
            seed=0,
        )
        return [
            (sample.verdict, shown[-1] if shown else "")
            for sample, shown in zip(group.samples, engine.prompts, strict=True)
        ]

    return play
