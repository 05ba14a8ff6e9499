"""OpenHands' own agent loop over our sandbox, with its scripted model."""

import json

import numpy as np
import pytest

from cascade_jax.data.tasks import swe
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.environment.openhands import run_openhands
from cascade_jax.types import Row

pytest.importorskip("openhands.sdk", reason="needs the extra openhands (openhands-sdk, Python 3.12 or newer)")


def test_an_agent_of_openhands_repairs():
    from openhands.sdk.llm import Message, MessageToolCall, TextContent
    from openhands.sdk.testing import TestLLM

    content = swe.draw(np.random.default_rng(0), 3)
    fields = dict(swe.fields(content))
    row = Row("bug", "swe", ({"role": "user", "content": fields.pop("user")},), fields=fields)
    turns = [message["content"] for message in swe.oracle(content, None) if message["role"] == "assistant"]
    commands = [turn.strip("`\n") for turn in turns[:-1]]

    def call(number, name, arguments):
        made = MessageToolCall(id=f"c{number}", name=name, arguments=json.dumps(arguments), origin="completion")
        return Message(role="assistant", content=[TextContent(text="Next.")], tool_calls=[made])

    def verdict(commands, turns):
        calls = [call(i, "bash", {"command": command}) for i, command in enumerate(commands)]
        llm = TestLLM.from_messages([*calls, call(99, "finish", {"message": "Done."})])
        return run_openhands(ENVIRONMENTS["swe"](turns=turns, instructions=True), row, llm)

    right, trajectory = verdict(commands, 10)
    assert (right.reward, right.no_verdict, trajectory.stop) == (1.0, None, "done")
    assert "return" in trajectory.observations[0].messages[0]["content"]
    nothing, _ = verdict(commands[:1], 10)
    assert (nothing.reward, nothing.no_verdict) == (0.0, None)
    endless, _ = verdict(commands, len(commands))
    assert "limit of turns" in endless.no_verdict
