"""Tasks of the `verifiers` package (0.4): its harness runs the agent's program, which talks to our loop.

The program asks for each turn at an endpoint of the episode (`chat_endpoint`), so that any taskset and any harness that
speaks chat completions can be trained in, tools and all. Each episode starts a program, which takes about a second of
processor time: this is for environments that others wrote. It needs `uv` on the PATH and a package index at first use.
"""

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

from cascade_jax.config.build import require
from cascade_jax.data.tasksets import load_taskset
from cascade_jax.environment.chat_endpoint import MODEL, Asked, ChatEndpoint
from cascade_jax.rollout.environment import Observation, Opening, Trajectory
from cascade_jax.types import Reply, Row, Verdict


@dataclass(frozen=True)
class Taskset:
    """`harness`: its id, and other settings of it; `seconds`: that a whole run of the agent may take."""

    turns: int = 16
    harness: str = "null"
    harness_settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 1800.0
    resources: tuple[str, ...] = ("verifiers",)
    found: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False)  # tasks that were asked for

    def __post_init__(self) -> None:
        require(self.turns > 0, f"settings.turns={self.turns} must be positive.")
        require(self.seconds > 0, f"settings.seconds={self.seconds} must be positive.")

    def episode(self, row: Row, *, seed: int) -> "AgentRun":
        place = (row.fields["taskset"], row.fields["index"])
        if place not in self.found:
            [self.found[place]] = load_taskset(place[0]).include(idx=[str(place[1])])
        return AgentRun(self, self.found[place])


class AgentRun:
    """One run of the agent on one task."""

    def __init__(self, environment: Taskset, task: Any) -> None:
        self._environment, self._task = environment, task
        self._endpoint: ChatEndpoint | None = None
        self._run: asyncio.Task | None = None
        self._asked: Asked | None = None
        self._known = 0  # messages of the conversation that the loop has seen

    async def start(self) -> Opening:
        self._endpoint = ChatEndpoint()
        self._run = asyncio.create_task(self._agent())
        asked = await self._next()
        if asked is None:
            raise RuntimeError(f"the agent ended before it asked for anything: {_fault(self._run.result())}")
        self._known = len(asked.messages)
        return Opening(asked.messages, asked.tools)

    async def step(self, reply: Reply) -> Observation:
        before = self._asked.messages
        self._asked.answer.set_result((reply, "stop"))
        asked = await self._next()
        if asked is None:
            return Observation(done=True)
        # What the assistant said comes back as the agent has kept it; all else must be as it was.
        same = asked.messages[: self._known] == before and len(asked.messages) > self._known + 1
        if not same or asked.messages[self._known]["role"] != "assistant":
            raise RuntimeError("the agent rewrote its history, so its turns are no longer one conversation")
        new = asked.messages[self._known + 1 :]
        self._known = len(asked.messages)
        return Observation(new)

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        """After a limit the agent is told that nothing more comes, and what it has done is judged."""
        if trajectory.stop == "length" and self._asked is not None and not self._asked.answer.done():
            self._asked.answer.set_result((trajectory.replies[-1], "length"))
        while not self._run.done():
            if self._asked is not None and not self._asked.answer.done():
                self._asked.answer.set_result((Reply(""), "stop"))
            await self._next()
        trace = self._run.result()
        components = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        components |= {name: float(reward.value) for name, reward in trace.rewards.items() if reward is not None}
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if trace.has_error or unscored or not trace.rewards:
            return Verdict(math.nan, components, no_verdict=_fault(trace) or f"no reward by {unscored or 'its task'}")
        return Verdict(float(trace.reward), components)

    async def close(self) -> None:
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._run
        if self._endpoint is not None:
            await self._endpoint.close()

    async def _next(self) -> Asked | None:
        """The agent's next request; None once it has ended."""
        asking = asyncio.ensure_future(self._endpoint.asked.get())
        try:
            await asyncio.wait({asking, self._run}, return_when=asyncio.FIRST_COMPLETED)
            self._asked = asking.result() if asking.done() else None
        finally:
            asking.cancel()
        return self._asked

    async def _agent(self) -> Any:
        """The trace of the run."""
        from verifiers.v1 import Agent, AgentConfig

        config = {
            "model": MODEL,
            "harness": {"id": self._environment.harness, **self._environment.harness_settings},
            "runtime": {"type": "subprocess"},
            "client": {"type": "eval", "base_url": self._endpoint.url, "api_key_var": "NO_KEY"},
            "timeout": {"rollout": self._environment.seconds},
        }
        async with Agent(AgentConfig.model_validate(config)) as agent:
            return await agent.run(self._task)


def _fault(trace: Any) -> str:
    return "; ".join(f"{error.type}: {error.message}" for error in trace.errors)
