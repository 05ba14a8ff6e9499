"""Single-turn episodes: a row becomes a prompt, an engine continues it, and the chat format reads the reply back."""

import dataclasses
from collections.abc import Sequence

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.rollout.engine import Engine
from cascade_jax.types import Group, Prompt, Row, Sample


def make_prompt(chat: Chat, row: Row, domain: str, *, thinking: bool) -> Prompt:
    """The row's messages and tools, rendered up to where the assistant starts to write."""
    rendered = chat.render(row.messages, row.tools, thinking=thinking, generation_prompt=True)
    return Prompt(ids=rendered.ids, row=row, domain=domain)


def run_prompts(
    engine: Engine,
    chat: Chat,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    *,
    samples_per_prompt: int,
    seed: int,
) -> list[Group]:
    """Groups in the order of the prompts, each sample with its `reply`: the ids as drawn, parsed, never re-encoded."""
    groups = engine.generate(prompts, sampling, samples_per_prompt=samples_per_prompt, seed=seed)
    return [dataclasses.replace(group, samples=_read(chat, group)) for group in groups]


def _read(chat: Chat, group: Group) -> tuple[Sample, ...]:
    prompt = group.prompt
    return tuple(
        dataclasses.replace(sample, reply=chat.parse(sample.ids, prompt_ids=prompt.ids, tools=prompt.row.tools))
        for sample in group.samples
    )
