"""A chat template on a two-turn conversation with a tool: what it rewrites, what it trains, what it leaves out."""

import re
from typing import Any, NamedTuple

import numpy as np

from cascade_jax.conformance.finding import Finding
from cascade_jax.data.chat import Chat, Rendered
from cascade_jax.data.messages import Message
from cascade_jax.data.templates import lacking
from cascade_jax.data.tokenizer import Tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Its name."}},
            "required": ["place"],
        },
    },
}
ONLY_ADD = "train on rows of one user turn, or give a chat_template.jinja that only adds text at the end."
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class Example(NamedTuple):
    """A conversation that the template can write, and how it writes it."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    thinking: bool
    rendered: Rendered


class Span(NamedTuple):
    """Neighbouring tokens of one sort, as text."""

    text: str
    trained: bool
    special: bool


def conversation(*, thinking: bool) -> list[Message]:
    """Question, tool call, result, answer; question, answer. With `thinking`, each assistant's turn has a thought."""

    def assistant(content: str, thought: str, **calls: Any) -> Message:
        return {"role": "assistant", "content": content, **calls} | ({"reasoning_content": thought} if thinking else {})

    call = {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": {"place": "Oslo"}}}
    return [
        {"role": "user", "content": "Is it raining up there?"},
        assistant("I will look.", "The tool knows.", tool_calls=[call]),
        {"role": "tool", "content": "rain, 4 degrees", "tool_call_id": "call_0"},
        assistant("It is raining, at 4 degrees.", "The tool says rain."),
        {"role": "user", "content": "Is that warm?"},
        assistant("No, that is cold.", "Four is not much."),
    ]


def example(chat: Chat) -> Example:
    """The first of these that the template takes: with tool and thoughts, with the tool, one plain turn.

    ValueError: it takes none of them.
    """
    user, *_, answer = conversation(thinking=False)
    candidates = [(conversation(thinking=True), [TOOL], True), (conversation(thinking=False), [TOOL], False)]
    for messages, tools, thinking in candidates:
        try:
            return Example(messages, tools, thinking, chat.render(messages, tools, thinking=thinking))
        except ValueError:
            continue
    return Example([user, answer], [], False, chat.render([user, answer], thinking=False))


def written(chat: Chat, shown: Example) -> set[int]:
    """The ids of the conversation and of the prompts in both modes."""
    prompts = [
        chat.render(shown.messages[:1], shown.tools, thinking=thinking, generation_prompt=True).ids
        for thinking in (True, False)
    ]
    return set(np.concatenate([shown.rendered.ids, *prompts]).tolist())


def template_file(tokenizer: Tokenizer) -> Finding:
    """Which template a run reads where it asks for none by name."""
    name, template = "template file", tokenizer.chat_template
    if template is not None:
        return Finding(name, True, f"{template.file.name} gives the template")
    if not lacking(tokenizer):
        return Finding(name, True, "none is given; the vocabulary has Nemotron-3's tokens, so that format is written")
    fix = "copy the model's chat_template.jinja into the folder; a base model that has none can be given one."
    return Finding(name, False, "none is given, so plain ChatML is written", fix)


def features(chat: Chat, shown: Example) -> Finding:
    """What of a conversation the template writes at all."""
    text = chat.tokenizer.decode(shown.rendered.ids.tolist())
    marks = {"tools": "The weather at a place.", "tool calls": "Oslo", "thoughts": "Four is not much."}
    left_out = [name for name, mark in marks.items() if mark not in text]
    if not left_out:
        return Finding("template", True, "writes tools, tool calls and thoughts")
    return Finding("template", True, f"does not write {', '.join(left_out)}: rows that need them teach nothing of it")


def prefixes(chat: Chat, *, thinking: bool) -> Finding:
    """Each prompt begins its finished turn, and each finished turn begins the next prompt, thoughts aside."""
    name = f"prefixes, {'' if thinking else 'not '}thinking"
    try:
        prompts, finished = _turns(chat, thinking=thinking)
    except ValueError as error:
        return Finding(name, False, f"the conversation cannot be rendered: {error}", ONLY_ADD)
    for i, (prompt, whole) in enumerate(zip(prompts, finished, strict=True)):
        if not _begins(prompt, whole):
            text = f"prompt {i + 1} differs from its finished turn at token {_common(prompt, whole)} of {len(prompt)}"
            fix = "give a chat_template.jinja whose generation prompt is how an assistant's turn begins."
            return Finding(name, False, text, fix)
    anew = []
    for i, (whole, following) in enumerate(zip(finished[:-1], prompts[1:], strict=True)):
        if _begins(whole, following):
            continue
        place = f"assistant turn {i + 1} is rendered anew from token {_common(whole, following)} of {len(whole)}"
        if not _without_thoughts(chat.tokenizer, following).startswith(_without_thoughts(chat.tokenizer, whole)):
            return Finding(name, False, f"{place}, and not for its thoughts alone", ONLY_ADD)
        anew.append(f"{place} (the template drops thoughts there, and our episodes start a new segment)")
    links = len(prompts) + len(finished) - 1
    return Finding(name, True, "; ".join([f"{links - len(anew)} of {links} prefixes hold", *anew]))


def loss_mask(chat: Chat, shown: Example) -> Finding:
    """Every assistant's turn is trained, with all of its text, and nothing else is."""
    ids, trained = shown.rendered
    written = [message["content"] for message in shown.messages if message["role"] == "assistant"]
    runs = [chat.tokenizer.decode(run.tolist()) for run in trained_runs(shown.rendered)]
    text = f"{trained.sum()} of {len(ids)} tokens are trained, in {len(runs)} runs for {len(written)} assistant turns"
    told = [message["content"] for message in shown.messages if message["role"] != "assistant"]
    missing = [content for content, run in zip(written, runs, strict=False) if content not in run]
    leaked = [content for content in told if any(content in run for run in runs)]
    if len(runs) == len(written) and not missing and not leaked:
        return Finding("loss mask", True, text)
    faults = [f"{content!r} is not trained" for content in missing] + [f"{content!r} is trained" for content in leaked]
    fix = "give a chat_template.jinja that writes each assistant's text once, as it is, after the generation prompt."
    return Finding("loss mask", False, "; ".join([text, *faults]), fix)


def trained_runs(rendered: Rendered) -> list[np.ndarray]:
    """The ids of each unbroken run of trained tokens."""
    runs = np.split(rendered.ids, np.flatnonzero(np.diff(rendered.trained)) + 1)
    return runs[0 if rendered.trained[0] else 1 :: 2]


def spans(tokenizer: Tokenizer, rendered: Rendered) -> list[Span]:
    """The conversation in runs of tokens that are alike, for a picture of the loss mask."""
    special = np.isin(rendered.ids, list(tokenizer.specials.values()))
    kind = 2 * rendered.trained + special
    cuts = np.flatnonzero(np.diff(kind)) + 1
    return [
        Span(tokenizer.decode(ids.tolist()), bool(kinds[0] & 2), bool(kinds[0] & 1))
        for ids, kinds in zip(np.split(rendered.ids, cuts), np.split(kind, cuts), strict=True)
    ]


def _turns(chat: Chat, *, thinking: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The prompt before each assistant's turn, and the conversation up to its end."""
    messages = conversation(thinking=thinking)
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    prompts = [chat.render(messages[:i], [TOOL], thinking=thinking, generation_prompt=True).ids for i in turns]
    return prompts, [_ended(chat.render(messages[: i + 1], [TOOL], thinking=thinking)) for i in turns]


def _begins(part: np.ndarray, whole: np.ndarray) -> bool:
    return np.array_equal(part, whole[: len(part)])


def _ended(rendered: Rendered) -> np.ndarray:
    """Without what the template writes after the last turn's end."""
    last = np.flatnonzero(rendered.trained)
    return rendered.ids[: last[-1] + 1] if last.size else rendered.ids


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two sequences share at their beginning."""
    length = min(len(a), len(b))
    return int(np.argmin(np.append(a[:length] == b[:length], False)))


def _without_thoughts(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    return _THOUGHT.sub("", tokenizer.decode(ids.tolist()))
