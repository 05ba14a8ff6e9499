"""A resources server of NeMo-Gym as an environment: it keeps the state, answers tools and judges; we run the loop."""

import json
from dataclasses import dataclass

from cascade_jax.config.build import require
from cascade_jax.environment.nemo_gym.responses import output_items, record, response
from cascade_jax.environment.nemo_gym.wire import Session, checked_url, verdict_of
from cascade_jax.rollout.environment import Message, Observation, Opening, Trajectory
from cascade_jax.types import Reply, Row, ToolCall, Verdict

RESERVED = {"seed_session", "verify", "aggregate_metrics", "mcp"}  # paths of the server's own


@dataclass(frozen=True)
class ResourcesServer:
    """`url`: http://host:port of the server. `seconds`: that it may take for one answer. ConfigError for a bad one."""

    url: str
    turns: int = 16
    seconds: float = 60.0
    resources: tuple[str, ...] = ("nemo_gym",)

    def __post_init__(self) -> None:
        checked_url(self.url, "settings.url")
        require(self.turns > 0, f"settings.turns={self.turns} must be positive.")
        require(self.seconds > 0, f"settings.seconds={self.seconds} must be positive.")

    def episode(self, row: Row, *, seed: int) -> "ServerEpisode":
        return ServerEpisode(self, row)


class ServerEpisode:
    """One session. Tools are those of the row: no other path of the server can be reached by what the model writes."""

    def __init__(self, server: ResourcesServer, row: Row) -> None:
        self._where = f"{server.url.rstrip('/')}/verify"
        self._row, self._record = row, record(row)
        self._session = Session(server.url.rstrip("/"), seconds=server.seconds)
        self._tools = {tool["function"]["name"] for tool in row.tools} - RESERVED
        self._calls = 0

    async def start(self) -> Opening:
        await self._session.post_for_object("/seed_session", self._record)
        return Opening(self._row.messages, self._row.tools)

    async def step(self, reply: Reply) -> Observation:
        """A turn without calls ends the episode, as in NeMo-Gym's simple agent."""
        if not reply.tool_calls:
            return Observation(done=True)
        return Observation(tuple([await self._answer(call) for call in reply.tool_calls]))

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        said = response(output_items(trajectory), tools=self._row.tools, cut_off=trajectory.stop == "length")
        answer = await self._session.post_for_object("/verify", {**self._record, "response": said})
        return verdict_of(answer, self._where)

    async def close(self) -> None:
        await self._session.close()

    async def _answer(self, call: ToolCall) -> Message:
        """A refusal (4xx) is the tool's answer: the model called it wrongly."""
        text = json.dumps({"error": f"there is no tool {call.name}"})
        if call.name in self._tools:
            _, text = await self._session.post(f"/{call.name}", dict(call.arguments))
        message = {"role": "tool", "content": text, "tool_call_id": f"call_{self._calls}"}
        self._calls += 1
        return message
