"""What a domain of several turns is: a row opens an episode, which answers each turn and is judged at its end.

A domain of one turn needs none of this: it has a verifier (`cascade_jax.reward`).
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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

    async def start(self) -> Opening:
        """The same for every try at a row: rewards are compared within the group of one prompt."""
        ...

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


@runtime_checkable
class Comparing(Protocol):
    """What an environment also has where a reward is relative to the other tries at the same row."""

    async def compare_group(
        self, row: Row, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict]
    ) -> list[Verdict]:
        """The final verdict of every try, after all have ended. `verdicts`: what each episode said by itself."""
        ...


def unfinished(verdict: Verdict, trajectory: Trajectory) -> Verdict:
    """The verdict, but none where an episode that a limit cut off was a success all the same (recipe.md 13).

    Such a success would teach never to end; a failure that ran into a limit keeps its reward.
    """
    if trajectory.stop == "done" or verdict.no_verdict is not None or verdict.reward <= 0:
        return verdict
    reason = f"resolved, but the episode ended on its limit of {trajectory.stop}"
    components = {**verdict.components, "masked": 1.0}  # so that no alarm takes it for something broken
    return dataclasses.replace(verdict, reward=math.nan, components=components, no_verdict=reason)
