"""Chat formats that exist as a Jinja template only (SmolLM2 and other ChatML models); ChatML where there is none."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# The default system text is SmolLM2's own; its template puts it where a conversation has none.
CHATML = (
    "{%- if messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


class JinjaRenderer:
    """The part of a `renderers` renderer that `Chat` uses, over a template whose turns only ever append text."""

    def __init__(self, tokenizer: Any, template: str | None, *, thinking: bool) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from renderers.default import DefaultRenderer

        def refuse(message: str) -> None:
            raise ValueError(f"the chat template refuses this conversation: {message}")

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        self._template = environment.from_string(template or CHATML)
        self._tokenizer = tokenizer
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._end = tokenizer.eos_token_id if end is None else end
        self._thinking = thinking
        self.parse_response = DefaultRenderer(tokenizer).parse_response
        self.get_stop_token_ids = DefaultRenderer(tokenizer).get_stop_token_ids

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
                    (self._text(messages[:i], tools, True), False),
                    (self._text(messages[: i + 1], tools, False), True),
                ]
        parts.append((self._text(messages, tools, add_generation_prompt), False))
        result, done = RenderedTokens(), ""
        for text, written in parts:
            if not text.startswith(done):
                raise ValueError(
                    "this chat template rewrites earlier turns, so they cannot be told apart; give single-turn rows."
                )
            ids = self._tokenizer.encode(text[len(done) :])
            last = len(ids) - ids[::-1].index(self._end) if self._end in ids else len(ids)
            result.token_ids += ids
            result.sampled_mask += [written and k < last for k in range(len(ids))]
            done = text
        return result

    def bridge_to_next_turn(self, *_: Any, **__: Any) -> None:
        """Never: an unknown template cannot promise what it puts between turns."""

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Any, prompt: bool) -> str:
        return self._template.render(
            messages=messages, tools=tools, add_generation_prompt=prompt, enable_thinking=self._thinking
        )
