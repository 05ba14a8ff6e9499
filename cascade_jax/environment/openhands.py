"""OpenHands' agent over our sandbox (extra `openhands`, Python 3.12 or newer): its loop, our shell and verdict.

The model is any endpoint that `openhands.sdk.LLM` reaches, such as a checkpoint of ours behind `launch.serve`.
"""

import asyncio
import functools
import itertools
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cascade_jax.environment.shell import BASH
from cascade_jax.rollout.environment import Environment, Episode, Observation, Trajectory
from cascade_jax.types import Reply, Row, ToolCall, Verdict

_numbers = itertools.count()
_live: dict[int, Callable[[str], str]] = {}  # commands of the conversations that go on; tools are made from plain data


def run_openhands(environment: Environment, row: Row, llm: Any, *, seed: int = 0) -> tuple[Verdict, Trajectory]:
    """The verdict of one try by OpenHands, and what it ran. Blocking.

    llm: an `openhands.sdk.LLM`. The agent has the environment's number of turns, the tool `bash` in our sandbox and
    OpenHands' own tools to think and to finish; the environment has to read calls of tools (`instructions=True`).
    ImportError: openhands-sdk is not installed.
    """
    from openhands.sdk import Agent, Conversation, Tool
    from openhands.sdk.conversation.state import ConversationExecutionStatus

    episode, number = environment.episode(row, seed=seed), next(_numbers)
    with ThreadPoolExecutor(1) as thread, tempfile.TemporaryDirectory(prefix="openhands-") as folder:

        def wait(work: Any) -> Any:
            return thread.submit(asyncio.run, work).result()  # wherever the agent calls from, no loop runs in there

        try:
            opening = wait(episode.start())
            steps = _Steps(episode, wait)
            _live[number] = steps
            _register_bash()
            agent = Agent(llm=llm, tools=[Tool(name="bash", params={"number": number})])
            conversation = Conversation(
                agent=agent, workspace=folder, max_iteration_per_run=environment.turns, visualizer=None
            )
            conversation.send_message("\n\n".join(m["content"] for m in opening.messages if m["role"] == "user"))
            conversation.run()
            finished = conversation.state.execution_status == ConversationExecutionStatus.FINISHED
            conversation.close()
            stop = "done" if finished else "turns"
            trajectory = Trajectory(tuple(steps.replies), tuple(steps.observations), stop)
            return wait(episode.verdict(trajectory)), trajectory
        finally:
            _live.pop(number, None)
            wait(episode.close())


class _Steps:
    """Commands as replies of the episode."""

    def __init__(self, episode: Episode, wait: Callable[[Any], Any]):
        self._episode, self._wait = episode, wait
        self.replies: list[Reply] = []
        self.observations: list[Observation] = []

    def __call__(self, command: str) -> str:
        """What the command says."""
        if self.observations and self.observations[-1].done:
            return "The episode is over. Finish."
        reply = Reply("", tool_calls=(ToolCall("bash", {"command": command}),))
        observation = self._wait(self._episode.step(reply))
        self.replies.append(reply)
        self.observations.append(observation)
        return "\n".join(m["content"] for m in observation.messages) or "The episode is over. Finish."


@functools.cache
def _register_bash() -> None:
    """Make the tool known to OpenHands. Its classes say that they are the module's, since it refuses local ones."""
    from openhands.sdk.tool import Action, ToolDefinition, ToolExecutor, register_tool
    from openhands.sdk.tool import Observation as Seen

    class ShellAction(Action):
        __qualname__ = "ShellAction"
        command: str

    class ShellSeen(Seen):
        __qualname__ = "ShellSeen"

    class Run(ToolExecutor):
        def __init__(self, number: int):
            self.number = number

        def __call__(self, action: ShellAction, conversation: Any = None) -> ShellSeen:
            return ShellSeen.from_text(text=_live[self.number](action.command))

    class BashTool(ToolDefinition[ShellAction, ShellSeen]):
        __qualname__ = "BashTool"
        name = "bash"

        @classmethod
        def create(cls, conv_state: Any = None, *, number: int) -> list["BashTool"]:
            told = BASH["function"]["description"]
            return [cls(action_type=ShellAction, observation_type=ShellSeen, description=told, executor=Run(number))]

    register_tool("bash", BashTool)
