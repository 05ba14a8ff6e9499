"""A row on its way to a prompt, and sampled ids on their way back to a reply."""

import dataclasses

import numpy as np
import pytest

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.rollout.episode import make_prompt, run_prompts
from cascade_jax.types import Group, Row, Sample, ToolCall

from .conftest import LLAMA, random_params

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    },
}
ROW = Row(id="r", kind="math", messages=({"role": "user", "content": "2 + 3 = ?"},))


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return Chat(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


class Scripted:
    """An engine that writes what it is told, the same for every prompt."""

    def __init__(self, chat: Chat, *texts: str) -> None:
        self.answers = [np.array(chat.tokenizer.encode(text, specials=True), np.int32) for text in texts]

    def generate(self, prompts, sampling, *, samples_per_prompt, seed):
        samples = tuple(
            Sample(ids, np.full(len(ids), -1.0, np.float32), np.ones(len(ids), bool), "stop", 0)
            for ids in self.answers[:samples_per_prompt]
        )
        return [Group(prompt, samples) for prompt in prompts]

    def load(self, params, version):
        raise NotImplementedError


@pytest.mark.parametrize("thinking", [False, True])
def test_a_prompt_ends_where_the_assistant_starts(chat, thinking):
    prompt = make_prompt(chat, ROW, "math", thinking=thinking)
    assert prompt.ids.dtype == np.int32 and prompt.row is ROW and prompt.domain == "math"
    text = chat.tokenizer.decode(prompt.ids.tolist())
    assert "2 + 3 = ?" in text
    assert text.endswith("<|im_start|>assistant\n<think>" + ("\n" if thinking else "</think>"))


def test_tools_are_part_of_the_prompt(chat):
    with_tools = make_prompt(chat, dataclasses.replace(ROW, tools=(TOOL,)), "tools", thinking=False)
    assert "<name>add</name>" in chat.tokenizer.decode(with_tools.ids.tolist())


def test_replies_are_read_back(chat):
    """The prompt says whether the thought is open already; the row's tools give arguments their types."""
    call = (
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=b>\n7\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>"
    )
    row = dataclasses.replace(ROW, tools=(TOOL,))
    prompts = [make_prompt(chat, row, "tools", thinking=thinking) for thinking in (False, True)]
    engine = Scripted(chat, "It is 5.<|im_end|>", f"hmm</think>{call}")
    plain, thinking = run_prompts(engine, chat, prompts, SamplingConfig(), samples_per_prompt=2, seed=0)
    assert plain.prompt is prompts[0] and thinking.prompt is prompts[1]
    assert plain.samples[0].reply.content == "It is 5." and plain.samples[0].reply.malformed is None
    assert thinking.samples[0].reply.malformed == "the thought is not closed"
    reply = thinking.samples[1].reply
    assert reply.reasoning.strip() == "hmm" and reply.malformed is None
    assert reply.tool_calls == (ToolCall("add", {"a": 5, "b": "7"}),)


def test_replies_do_not_touch_what_was_sampled(chat):
    config = dataclasses.replace(LLAMA, vocab_size=chat.tokenizer.vocab_size)
    engine = LocalEngine(config, random_params(config), stop_ids=chat.stop_ids, buckets=(64,))
    prompts = [make_prompt(chat, ROW, "math", thinking=False)]
    sampling = SamplingConfig(max_tokens=8)
    [bare] = engine.generate(prompts, sampling, samples_per_prompt=2, seed=0)
    [read] = run_prompts(engine, chat, prompts, sampling, samples_per_prompt=2, seed=0)
    for one, two in zip(bare.samples, read.samples, strict=True):
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_array_equal(one.logprobs, two.logprobs)
        assert one.reply is None and two.reply == chat.parse(one.ids, prompt_ids=prompts[0].ids)
