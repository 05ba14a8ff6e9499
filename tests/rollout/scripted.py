"""Episodes in tests: an engine that says what it is told, and the loop around it."""

import numpy as np

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.rollout.episode import make_prompt
from cascade_jax.rollout.episodes import run_episodes
from cascade_jax.types import Group, Sample

SAMPLING = SamplingConfig(max_tokens=6)


class Scripted:
    """An engine that writes, in the turn t of the try at a place, the t-th of the texts for it."""

    def __init__(self, chat: Chat, *scripts: tuple[str, ...]) -> None:
        self.chat, self.scripts, self.turns = chat, scripts, [0] * len(scripts)
        self.prompts: list[list[np.ndarray]] = [[] for _ in scripts]

    def generate(self, prompts, sampling, *, samples_per_prompt, seed):
        assert samples_per_prompt == 1
        groups = []
        for prompt in prompts:
            text = self.scripts[prompt.place][self.turns[prompt.place]]
            self.turns[prompt.place] += 1
            self.prompts[prompt.place].append(prompt.ids)
            ids = np.array(self.chat.tokenizer.encode(text, specials=True), np.int32)
            stop = "stop" if text.endswith("<|im_end|>") else "length"
            logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
            groups.append(Group(prompt, (Sample(ids, logprobs, np.ones(len(ids), bool), stop, 7),)))
        return groups

    def load(self, params, version):
        raise NotImplementedError


def run(engine, chat, environment, rows, *, samples=1, thinking=False, longest=128, seed=0, sampling=SAMPLING, **more):
    prompts = [make_prompt(chat, row, "guess", thinking=thinking) for row in rows]
    return run_episodes(
        engine,
        chat,
        {"guess": environment},
        prompts,
        sampling,
        thinking={"guess": thinking},
        longest=longest,
        samples_per_prompt=samples,
        seed=seed,
        **more,
    )


def says(*texts):
    return tuple(f"{text}<|im_end|>" for text in texts)
