"""The tokens of one episode, exactly as they were sampled and read: design.md section 2, tokens in, tokens out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cascade_jax.data.chat import Chat
from cascade_jax.rollout.environment import Message, Observation, Opening
from cascade_jax.types import Reply, Sample, Segment


class Chain:
    """Grows by turns: `wrote` what the assistant sampled after `prompt`, `answered` what it reads next.

    `prompt` (m,) int32 is what is to be continued now. It begins with the prompt before it and all that was sampled, or
    else, where neither the chat format nor the ids themselves show that it does, a new segment begins with it.
    """

    def __init__(self, chat: Chat, opening: Opening, *, thinking: bool) -> None:
        """ValueError: the chat format cannot write the opening."""
        self._chat, self._thinking = chat, thinking
        self._messages: list[Message] = list(opening.messages)
        self._tools = opening.tools
        self._calls = 0
        self._last = np.zeros(0, np.int32)
        self.prompt = self._rendered()
        self._segments = [_Segment(self.prompt)]
        self._read: np.ndarray | None = np.zeros(0, np.int32)  # by the assistant since its last turn; None: all anew

    def wrote(self, sample: Sample) -> Reply:
        """One turn of the assistant's, read back."""
        if self._read is None:
            self._segments.append(_Segment(self.prompt))
        else:
            self._segments[-1].add(self._read, np.zeros(len(self._read), np.float32), trained=False)
        self._segments[-1].add(sample.ids, sample.logprobs, trained=True)
        self._last = sample.ids
        reply = self._chat.parse(sample.ids, prompt_ids=self.prompt, tools=self._tools)
        self._messages.append(self._message(reply))
        return reply

    def answered(self, observation: Observation) -> None:
        """ValueError: the chat format cannot write the messages."""
        self._messages += observation.messages
        whole = np.concatenate([self.prompt, self._last])
        given = {"thinking": self._thinking}
        longer = self._chat.extend(self.prompt, self._last, observation.messages, self._tools, **given)
        if longer is None or not _begins(longer, whole):
            longer = self._rendered()  # which may begin with the same ids all the same
        self._read = longer[len(whole) :] if _begins(longer, whole) else None
        self.prompt = longer

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What was sampled so far, with what was read in between."""
        return tuple(segment.whole() for segment in self._segments)

    def _rendered(self) -> np.ndarray:
        given = {"thinking": self._thinking, "generation_prompt": True}
        return self._chat.render(self._messages, self._tools, **given).ids

    def _message(self, reply: Reply) -> Message:
        """A reply in the form of data.messages."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{self._calls + i}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for i, call in enumerate(reply.tool_calls)
            ]
            self._calls += len(reply.tool_calls)
        return message


class _Segment:
    def __init__(self, prompt: np.ndarray) -> None:
        self.prompt = prompt
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, ids: np.ndarray, logprobs: np.ndarray, *, trained: bool) -> None:
        self.parts.append((ids, logprobs, np.full(len(ids), trained)))

    def whole(self) -> Segment:
        ids, logprobs, mask = zip(*self.parts, strict=True) if self.parts else ((), (), ())
        return Segment(self.prompt, _joined(ids, np.int32), _joined(logprobs, np.float32), _joined(mask, bool))


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _begins(ids: np.ndarray, start: np.ndarray) -> bool:
    return len(ids) >= len(start) and np.array_equal(ids[: len(start)], start)
