"""The chat formats of model families as renderers: typed ones of the package `renderers`, else the Jinja template."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from cascade_jax.data.side_files import ChatTemplate
from cascade_jax.data.tokenizer import CHAT_SPECIALS, Tokenizer

# Breaks the name of a special token in a user's text, so that it stays text. Unicode reserves it for such internal use.
MARK = "\ufdd0"
CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
_QWEN3_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
_QWEN3_SPECIALS += ("<tool_response>", "</tool_response>")
_PROBE = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "reasoning_content": "c"},
    {"role": "user", "content": "d"},
)


def make_renderer(tokenizer: Tokenizer, template: str, *, thinking: bool) -> Any:
    """A renderer with render, parse_response, bridge_to_next_turn and get_stop_token_ids, as `renderers` defines them.

    "auto" is the format of the template beside the tokenizer, by a typed renderer where one writes a probe conversation
    exactly as it does. Without a template it is Nemotron-3's where the vocabulary has its tokens, else plain ChatML.
    """
    adapter = RendererTokenizer(tokenizer)
    missing = lacking(tokenizer)
    if template == "nemotron3" and missing:
        raise ValueError(f"{tokenizer.path} lacks {', '.join(missing)} of the nemotron3 template; use template='auto'.")
    if template == "nemotron3" or (tokenizer.chat_template is None and not missing):
        return _nemotron3(adapter, thinking)
    jinja = JinjaRenderer(adapter, tokenizer.chat_template, thinking=thinking)
    if tokenizer.chat_template is not None:
        wanted = adapter.encode(jinja.text(_PROBE, None, True))
        for needs, make in ((_QWEN3_SPECIALS, _qwen3), (CHAT_SPECIALS, _nemotron3)):
            if set(needs) <= set(tokenizer.specials):
                renderer = make(adapter, thinking)
                if renderer.render(list(_PROBE), add_generation_prompt=True).token_ids == wanted:
                    return renderer
    return jinja


def lacking(tokenizer: Tokenizer) -> list[str]:
    """The special tokens of Nemotron-3's format that the vocabulary does not have."""
    return [token for token in CHAT_SPECIALS if token not in tokenizer.specials]


def _nemotron3(adapter: Any, thinking: bool) -> Any:
    from renderers import Nemotron3Renderer, Nemotron3RendererConfig

    return Nemotron3Renderer(adapter, Nemotron3RendererConfig(enable_thinking=thinking))


def _qwen3(adapter: Any, thinking: bool) -> Any:
    from renderers import Qwen3Renderer, Qwen3RendererConfig

    return Qwen3Renderer(adapter, Qwen3RendererConfig(enable_thinking=thinking))


class RendererTokenizer:
    """What `renderers` asks of a tokenizer: reads special tokens in rendered text, but no name that holds MARK."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.name_or_path = str(tokenizer.path)
        self.unk_token_id = None
        self.eos_token_id = tokenizer.eos_id
        self.stop_ids = tokenizer.stop_ids
        self.named_tokens = tokenizer.named_tokens
        self.all_special_tokens: list[str] = []
        self._tokenizer = tokenizer
        self._cached = lru_cache(maxsize=4096)(self._encode)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._cached(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        if MARK not in text:
            return tuple(self._tokenizer.encode(text, specials=True))
        ids: list[int] = []
        for part in self._tokenizer.special_pattern.split(text):
            known = self._tokenizer.specials.get(part)
            ids += self._tokenizer.encode(part.replace(MARK, "")) if known is None else [known]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.specials.get(token)


class JinjaRenderer:
    """The part of a `renderers` renderer that `Chat` uses, over a template whose turns only ever append text."""

    def __init__(self, tokenizer: RendererTokenizer, template: ChatTemplate | None, *, thinking: bool) -> None:
        from renderers.default import DefaultRenderer

        self._name = "plain ChatML" if template is None else f"the chat template {template.file}"
        self._tokenizer, self._thinking = tokenizer, thinking
        # What may end a turn. Names of these in a message's own text are no special tokens (MARK).
        self._ends = {tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id, *tokenizer.stop_ids}
        self.parse_response = DefaultRenderer(tokenizer).parse_response
        self.get_stop_token_ids = DefaultRenderer(tokenizer).get_stop_token_ids
        try:
            self._template = jinja_environment().from_string(CHATML if template is None else template.text)
        except Exception as error:  # RecursionError and the like, beside Jinja's own
            raise ValueError(f"{self._name} cannot be read: {_reason(error)}; fetch it again.") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> Any:
        """Token ids, and True where an assistant wrote: after its header, up to the end of its turn."""
        from renderers import RenderedTokens

        if not messages:
            raise ValueError("there are no messages to render.")
        parts: list[tuple[str, bool]] = []  # longer and longer texts, and whether the assistant wrote what is new
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                parts += [
                    (self.text(messages[:i], tools, True), False),
                    (self.text(messages[: i + 1], tools, False), True),
                ]
        parts.append((self.text(messages, tools, add_generation_prompt), False))
        result, done = RenderedTokens(), ""
        for text, written in parts:
            if not text.startswith(done):
                raise ValueError(
                    "this chat template rewrites earlier turns, so they cannot be told apart; give single-turn rows."
                )
            ids = self._tokenizer.encode(text[len(done) :])
            last = max((k + 1 for k, token in enumerate(ids) if token in self._ends), default=len(ids))
            result.token_ids += ids
            result.sampled_mask += [written and k < last for k in range(len(ids))]
            done = text
        return result

    def bridge_to_next_turn(self, *_: Any, **__: Any) -> None:
        """Never: an unknown template cannot promise what it puts between turns."""

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Any, prompt: bool) -> str:
        """The conversation as the template writes it. ValueError, which names the template: it refuses, or fails."""
        given = {"messages": messages, "tools": tools, "add_generation_prompt": prompt}
        try:
            return self._template.render(**self._tokenizer.named_tokens, **given, enable_thinking=self._thinking)
        except Exception as error:  # a template is a program of someone else's: it may fail in any way
            raise ValueError(
                f"{self._name} cannot write this conversation: {_reason(error)}; mend it, or give other rows."
            ) from None


def jinja_environment() -> Any:
    """What transformers gives a chat template, but for the date, which would make rows differ from day to day."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: what stands between is written as it is."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = tojson
    return environment


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
