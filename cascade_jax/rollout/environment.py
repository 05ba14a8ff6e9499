"""What a domain of several turns is: a row opens an episode, which answers each assistant turn and is judged at its end.

A domain of one turn needs none of this: it has a verifier (`cascade_jax.reward`).
"""

from dataclasses import dataclass
from typing import Any, Protocol

from cascade_jax.types import Reply, Row, Verdict

Message = dict[str, Any]  # in the form of cascade_jax.data.messages


@dataclass(frozen=True)
class Opening:
    """What the assistant sees first. Most episodes open with the row's own messages and tools."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Observation:
    """What the assistant sees after a turn of its own: tool results or a user's message, none where `done`."""

    messages: tuple[Message, ...] = ()
    done: bool = False


@dataclass(frozen=True)
class Trajectory:
    """An episode from its opening to its end. `stop`: "done" (the environment ended it), "turns", or "length"."""

    replies: tuple[Reply, ...]
    observations: tuple[Observation, ...]  # observations[i] answers replies[i]; one fewer where `stop` is "length"
    stop: str


class Episode(Protocol):
    """One try at one row, with all that it has opened (tables, a folder, a shell). Its calls never overlap."""

    async def start(self) -> Opening: ...

    async def step(self, reply: Reply) -> Observation: ...

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        """Called once, after the last turn. What broke on our side is `no_verdict`, never reward 0."""
        ...

    async def close(self) -> None:
        """Called once whatever happened before, and leaves nothing behind."""
        ...


class Environment(Protocol):
    """Opens episodes, any number at a time. `resources` names what an episode occupies, so that it can be bounded."""

    turns: int  # the most assistant turns of an episode
    resources: tuple[str, ...]  # such as ("sandbox",) or ("judge",)

    def episode(self, row: Row, *, seed: int) -> Episode: ...
