"""Messages to ids and sampled ids back to messages, in a model's own chat format; templates come from `renderers`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cascade_jax.data.templates import MARK, make_renderer
from cascade_jax.data.tokenizer import CHAT_SPECIALS, Tokenizer
from cascade_jax.types import UNCLOSED_THOUGHT, Reply, ToolCall

_CALL = re.compile(
    r"\s*<function=[^>\n]+>\s*(<parameter=[^>\n]+>((?!</parameter>).)*</parameter>\s*)*</function>\s*", re.DOTALL
)
TOOL_TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<tool_response>",
)
THINK_TAGS = ("<think>", "</think>")


class Rendered(NamedTuple):
    """ids (T,) int32; trained (T,) bool, True on what an assistant wrote and on its end token, nothing else."""

    ids: np.ndarray
    trained: np.ndarray


class Chat:
    """A tokenizer with its chat format: "auto" is that of the template beside it (`make_renderer`), or "nemotron3".

    ValueError: the vocabulary lacks tokens of the format, or the template cannot be read.
    """

    def __init__(self, tokenizer: Tokenizer, template: Literal["nemotron3", "auto"] = "auto") -> None:
        self.tokenizer = tokenizer
        self._renderers = {
            thinking: make_renderer(tokenizer, template, thinking=thinking) for thinking in (True, False)
        }
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys([*self._renderers[True].get_stop_token_ids(), *tokenizer.stop_ids])
        )
        self._openings = [opening for thinking in (True, False) if (opening := self._opening(thinking))]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: bool = True,
        generation_prompt: bool = False,
    ) -> Rendered:
        """A conversation in canonical form (data.messages). `thinking` picks how the generation prompt ends.

        Names of special tokens in any text stay text. ValueError: no messages, an unknown role, a late system message.
        """
        rendered = self._renderers[thinking].render(
            self._protect(messages), tools=self._protect(tools or ()) or None, add_generation_prompt=generation_prompt
        )
        trained = np.array(rendered.sampled_mask, bool)
        ids = rendered.token_ids
        for start in np.flatnonzero(trained & ~np.append(False, trained[:-1])):
            for opening in self._openings:  # the prompt gives these tokens; the model never writes them
                if ids[start : start + len(opening)] == opening:
                    trained[start : start + len(opening)] = False
        return Rendered(np.array(ids, np.int32), trained)

    def extend(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: bool = True,
    ) -> np.ndarray | None:
        """The next prompt (T,) int32: prompt, completion as sampled, `messages` (user or tools). None: render anew."""
        bridged = self._renderers[thinking].bridge_to_next_turn(
            _ints(prompt_ids), _ints(completion_ids), self._protect(messages), tools=self._protect(tools or ()) or None
        )
        return None if bridged is None else np.array(bridged.token_ids, np.int32)

    def parse(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        prompt_ids: Sequence[int] | np.ndarray = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Reply:
        """What was sampled after `prompt_ids`, which may have opened a thought; reads any ids without an error.

        `tools` give arguments their declared types; without them, an argument is JSON where it reads as JSON.
        """
        ids = _ints(ids)
        end = next((i for i, token in enumerate(ids) if token in self.stop_ids), len(ids))
        ids = ids[:end]
        parsed = self._renderers[True].parse_response(ids, prompt_ids=_ints(prompt_ids), tools=list(tools or ()))
        calls = tuple(ToolCall(call.name, call.arguments or {}) for call in parsed.tool_calls if call.name)
        return Reply(parsed.content, parsed.reasoning_content or "", calls, self._fault(ids, parsed))

    def _fault(self, ids: list[int], parsed: Any) -> str | None:
        thought = parsed.reasoning_content is not None
        if parsed.reasoning_complete is False or (thought and "</think>" not in self.tokenizer.decode(ids)):
            return UNCLOSED_THOUGHT
        if any(tag in parsed.content for tag in THINK_TAGS):
            return "a stray think tag"
        if any(tag in parsed.content for tag in TOOL_TAGS):
            return "a leftover tool tag"
        if any(token in parsed.content for token in self.tokenizer.specials):
            return "a special token in the text"
        for call in parsed.tool_calls:
            sloppy = "<function=" in call.raw and not _CALL.fullmatch(call.raw)
            if sloppy or call.status.value not in ("ok", "invalid_json"):
                return "a tool call that cannot be read"
        spans = [call.token_span for call in parsed.tool_calls]
        starts = [start for start, _ in spans[1:]] + [len(ids)]
        if any(self.tokenizer.decode(ids[end:start]).strip() for (_, end), start in zip(spans, starts, strict=False)):
            return "text after a tool call"
        return None

    def _protect(self, value: Any) -> Any:
        """Marks the names of special tokens in every text of messages or tools."""
        if isinstance(value, str):
            text = value.replace(MARK, "")
            for start in reversed(self.tokenizer.special_starts(text)):
                text = text[: start + 1] + MARK + text[start + 1 :]
            return text
        if isinstance(value, Mapping):
            return {self._protect(key): self._protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._protect(item) for item in value]
        return value

    def _opening(self, thinking: bool) -> list[int]:
        """The ids that the generation prompt adds after the assistant's header."""
        render = self._renderers[thinking].render
        user, header = {"role": "user", "content": "."}, self.tokenizer.encode("<|im_start|>assistant\n", specials=True)
        before = render([user]).token_ids
        prompt = render([user], add_generation_prompt=True).token_ids[len(before) :]
        return prompt[len(header) :] if prompt[: len(header)] == header else []


def _ints(ids: Sequence[int] | np.ndarray) -> list[int]:
    return [int(i) for i in ids]


def template_pieces() -> list[str]:
    """The constant texts of the Nemotron-3 template, without special tokens: pieces for a small vocabulary."""
    first = 0x110000  # above every character
    specials = {token: first + i for i, token in enumerate(CHAT_SPECIALS)}
    names = {i: token for token, i in specials.items()}
    characters = Tokenizer(
        path=Path("characters"),
        vocab_size=first + len(specials),
        specials=specials,
        eos_id=specials["<|im_end|>"],
        stop_ids=(),
        named_tokens={},
        chat_template=None,
        encode_plain=lambda text: [ord(c) for c in text],
        decode=lambda ids: "".join(names.get(i) or chr(i) for i in ids),
    )
    chat = Chat(characters)
    gap = "@"
    text, number = {"type": "string"}, {"type": "integer"}
    properties = [{gap: text}, {gap: number}, {gap: text, gap * 2: number}, {gap: number, gap * 2: text}]
    tools = [
        {"name": gap, "description": gap, "parameters": {"properties": fields, "required": list(fields)}}
        for fields in properties
    ]
    call = {"function": {"name": gap, "arguments": {gap: gap, gap * 2: gap}}}
    messages = [
        {"role": "user", "content": gap},
        {"role": "assistant", "content": gap, "reasoning_content": gap, "tool_calls": [call]},
        {"role": "tool", "content": gap},
    ]
    rendered = [chat.render(messages, tools), chat.render(messages, tools[::-1]), chat.render(messages)]
    constants = [
        piece
        for ids, _ in rendered
        for piece in re.split("|".join([f"{gap}+", *map(re.escape, CHAT_SPECIALS)]), characters.decode(ids.tolist()))
    ]
    return sorted({piece for piece in constants if len(piece) > 1}, key=lambda piece: (-len(piece), piece))
