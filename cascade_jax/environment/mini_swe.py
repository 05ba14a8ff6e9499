"""mini-swe-agent's DefaultAgent over our sandbox and our engine (extra `swe`): its loop, our episode, our verdict.

For trajectories by that scaffold, as in evaluation and for demonstrations. RL runs the same commands through
`rollout.episodes`, which keeps the tokens of all tries in lockstep.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cascade_jax.config import SamplingConfig
from cascade_jax.data.chat import Chat
from cascade_jax.environment.shell import read_command
from cascade_jax.rollout.engine import Engine
from cascade_jax.rollout.environment import Environment, Episode, Observation, Trajectory
from cascade_jax.types import Prompt, Reply, Row, Sample, Verdict

_STOPS = {"LimitsExceeded": "turns", "TimeExceeded": "turns", "RepeatedFormatError": "turns"}
Writer = Callable[[Sequence[dict[str, Any]]], Reply]


def run_mini_swe(
    environment: Environment, row: Row, write: Writer, *, seed: int = 0, seconds: int = 0
) -> tuple[Verdict, list[dict[str, Any]]]:
    """The verdict of one try by mini-swe-agent, and its messages. Blocking.

    write: the next reply to messages, such as EngineModel(...). The agent has the environment's number of turns and
    `seconds` (0: as long as it takes), and opens as the episode does. ImportError: the extra `swe` is not installed.
    """
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    from minisweagent.agents.default import DefaultAgent

    episode = environment.episode(row, seed=seed)
    with asyncio.Runner() as runner:
        try:
            opening = runner.run(episode.start())
            bridge = _Bridge(runner, episode, write, tools=bool(opening.tools))
            agent = DefaultAgent(
                bridge,
                bridge,
                system_template="",
                instance_template="",
                step_limit=environment.turns,
                cost_limit=0,
                wall_time_limit_seconds=seconds,
            )
            agent.extra_template_vars = {}
            bridge.opening = [dict(message) for message in opening.messages]
            status = agent.run().get("exit_status", "")
            stop = _STOPS.get(status, "done")
            trajectory = Trajectory(tuple(bridge.replies), tuple(bridge.observations), stop)
            return runner.run(episode.verdict(trajectory)), bridge.shown(agent.messages)
        finally:
            runner.run(episode.close())


class EngineModel:
    """Writes replies with an engine: messages are rendered, one sample is drawn, and its ids are read back.

    `samples` keeps (prompt ids, sample) of every call, exactly as drawn.
    """

    def __init__(self, engine: Engine, chat: Chat, row: Row, sampling: SamplingConfig, *, thinking: bool, seed: int):
        self._engine, self._chat, self._row, self._sampling = engine, chat, row, sampling
        self._thinking, self._seed = thinking, seed
        self.samples: list[tuple[np.ndarray, Sample]] = []

    def __call__(self, messages: Sequence[dict[str, Any]]) -> Reply:
        tools = self._row.tools
        ids = self._chat.render(messages, tools, thinking=self._thinking, generation_prompt=True).ids
        prompt = Prompt(ids, self._row, "mini-swe-agent", place=len(self.samples))
        [group] = self._engine.generate([prompt], self._sampling, samples_per_prompt=1, seed=self._seed)
        [sample] = group.samples
        self.samples.append((ids, sample))
        return self._chat.parse(sample.ids, prompt_ids=ids, tools=tools)


class _Bridge:
    """What DefaultAgent takes for its model and for its environment."""

    def __init__(self, runner: asyncio.Runner, episode: Episode, write: Writer, *, tools: bool):
        self._runner, self._episode, self._write, self._tools = runner, episode, write, tools
        self.opening: list[dict[str, Any]] = []
        self.replies: list[Reply] = []
        self.observations: list[Observation] = []

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        """One turn of the model; FormatError, which the agent shows to it, where that is not one command."""
        from minisweagent.exceptions import FormatError

        reply = self._write(self.shown(messages))
        self.replies.append(reply)
        message = {"role": "assistant", "content": reply.content, "extra": {"cost": 0.0}}
        if reply.tool_calls:
            first = sum(len(one.tool_calls) for one in self.replies[:-1])
            message["tool_calls"] = [
                {"id": f"call_{first + i}", "type": "function"}
                | {"function": {"name": call.name, "arguments": dict(call.arguments)}}
                for i, call in enumerate(reply.tool_calls)
            ]
        command = read_command(reply, tools=self._tools)
        if command is None:
            raise FormatError(message, *self._answer(reply).messages)
        message["extra"]["actions"] = [{"command": command, "reply": reply}]
        return message

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """One command; Submitted where the episode is over with it."""
        from minisweagent.exceptions import Submitted

        observation = self._answer(action["reply"])
        if observation.done:
            extra = {"exit_status": "Submitted", "submission": ""}
            raise Submitted({"role": "exit", "content": "", "extra": extra})
        return {"output": "", "returncode": 0, "messages": observation.messages}

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The episode's own words."""
        return [dict(said) for output in outputs for said in output["messages"]]

    def format_message(self, **message: Any) -> dict[str, Any]:
        """The agent's own opening, which `shown` replaces by the episode's, and its words at the end."""
        return {**message, "extra": {**message.get("extra", {}), "own": True}}

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        """None: the templates are empty."""
        return {}

    def serialize(self) -> dict[str, Any]:
        """Nothing beside the agent's own record."""
        return {}

    def shown(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation in the form of `data.messages`."""
        later = [
            message for message in messages if message["role"] != "exit" and not message.get("extra", {}).get("own")
        ]
        keys = ("role", "content", "tool_calls", "tool_call_id")
        return [*self.opening, *({key: message[key] for key in keys if key in message} for message in later)]

    def _answer(self, reply: Reply) -> Observation:
        observation = self._runner.run(self._episode.step(reply))
        self.observations.append(observation)
        return observation
