"""Messages to ids and sampled ids back to messages, in a model's own chat format; templates come from `renderers`."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cascade_jax.data.jinja_chat import JinjaRenderer
from cascade_jax.data.tokenizer import CHAT_SPECIALS, Tokenizer
from cascade_jax.types import Reply, ToolCall

# Breaks the name of a special token in a user's text, so that it stays text. Unicode reserves this character for such uses.
_MARK = "\ufdd0"
_CALL = re.compile(
    r"\s*<function=[^>\n]+>\s*(<parameter=[^>\n]+>((?!</parameter>).)*</parameter>\s*)*</function>\s*", re.DOTALL
)
_TOOL_TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<tool_response>",
)
_THINK_TAGS = ("<think>", "</think>")


class Rendered(NamedTuple):
    """ids (T,) int32; trained (T,) bool, True on what an assistant wrote and on its end token, nothing else."""

    ids: np.ndarray
    trained: np.ndarray


class Chat:
    """One tokenizer with one chat format: "nemotron3", or "auto" for that of the template beside it (ChatML if none)."""

    def __init__(self, tokenizer: Tokenizer, template: Literal["nemotron3", "auto"] = "nemotron3") -> None:
        self.tokenizer = tokenizer
        self._renderers = {thinking: _renderer(tokenizer, template, thinking) for thinking in (True, False)}
        self._header = tokenizer.encode("<|im_start|>assistant\n", specials=True)
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
            return "the thought is not closed"
        if any(tag in parsed.content for tag in _THINK_TAGS):
            return "a stray think tag"
        if any(tag in parsed.content for tag in _TOOL_TAGS):
            return "a leftover tool tag"
        if any(token in parsed.content for token in self.tokenizer.specials):
            return "a special token in the text"
        for call in parsed.tool_calls:
            if call.status.value not in ("ok", "invalid_json") or (
                "<function=" in call.raw and not _CALL.fullmatch(call.raw)
            ):
                return "a tool call that cannot be read"
        spans = [call.token_span for call in parsed.tool_calls]
        after = (
            [ids[end:start] for (_, end), (start, _) in zip(spans, [*spans[1:], (len(ids), 0)], strict=True)]
            if spans
            else []
        )
        if any(self.tokenizer.decode(part).strip() for part in after):
            return "text after a tool call"
        return None

    def _protect(self, value: Any) -> Any:
        """Marks the names of special tokens in every text of messages or tools."""
        if isinstance(value, str):
            text = value.replace(_MARK, "")
            for start in reversed(self.tokenizer.special_starts(text)):
                text = text[: start + 1] + _MARK + text[start + 1 :]
            return text
        if isinstance(value, Mapping):
            return {self._protect(key): self._protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._protect(item) for item in value]
        return value

    def _opening(self, thinking: bool) -> list[int]:
        """The ids that the generation prompt adds after the assistant's header."""
        message = [{"role": "user", "content": "."}]
        before = self._renderers[thinking].render(message).token_ids
        after = self._renderers[thinking].render(message, add_generation_prompt=True).token_ids
        return after[len(before) + len(self._header) :]


class _RendererTokenizer:
    """What `renderers` asks of a tokenizer: it reads special tokens in rendered text, but no name that was protected."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name_or_path = str(tokenizer.path)
        self.unk_token_id = None
        self.eos_token_id = tokenizer.eos_id
        self.all_special_tokens: list[str] = []
        self._tokenizer = tokenizer
        self._cached = lru_cache(maxsize=4096)(self._encode)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._cached(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        if _MARK not in text:
            return tuple(self._tokenizer.encode(text, specials=True))
        ids: list[int] = []
        for part in self._tokenizer.special_pattern.split(text):
            known = self._tokenizer.specials.get(part)
            ids += self._tokenizer.encode(part.replace(_MARK, "")) if known is None else [known]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.specials.get(token)


def _renderer(tokenizer: Tokenizer, template: str, thinking: bool) -> Any:
    adapter = _RendererTokenizer(tokenizer)
    if template == "auto":
        text = tokenizer.chat_template or ""
        template = "nemotron3" if "<function=" in text else "qwen3" if "<think>" in text else "jinja"
    if template == "nemotron3":
        from renderers import Nemotron3Renderer, Nemotron3RendererConfig

        missing = [token for token in CHAT_SPECIALS if token not in tokenizer.specials]
        if missing:
            raise ValueError(
                f"{tokenizer.path} lacks {', '.join(missing)} of the nemotron3 template; use template='auto'."
            )
        return Nemotron3Renderer(adapter, Nemotron3RendererConfig(enable_thinking=thinking))
    if template == "qwen3":
        from renderers import Qwen3Renderer, Qwen3RendererConfig

        return Qwen3Renderer(adapter, Qwen3RendererConfig(enable_thinking=thinking))
    return JinjaRenderer(adapter, tokenizer.chat_template, thinking=thinking)


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
