"""An environment of tools for tests: a safe with a number, which opens when it is told."""

import json

from cascade_jax.data.rows import parse_row
from cascade_jax.rollout.environment import Observation, Opening
from cascade_jax.types import Row, Verdict

DIAL = {
    "type": "function",
    "name": "dial",
    "description": "Turn to a number.",
    "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


class Safe:
    """Rows of the kind math, whose answer is the number."""

    turns = 5
    resources = ()

    def __init__(self, *, fails: str = "") -> None:
        self.fails, self.opened, self.closed = fails, 0, 0

    def episode(self, row: Row, *, seed: int) -> "Try":
        self.opened += 1
        return Try(self, row)


class Try:
    def __init__(self, safe: Safe, row: Row) -> None:
        self.safe, self.row, self.open = safe, row, False

    async def start(self) -> Opening:
        self._may_fail("start")
        return Opening(self.row.messages, self.row.tools)

    async def step(self, reply) -> Observation:
        if not reply.tool_calls:
            return Observation(done=True)
        self._may_fail("step")
        return Observation(tuple(self._answer(call) for call in reply.tool_calls))

    async def verdict(self, trajectory) -> Verdict:
        self._may_fail("verdict")
        said = trajectory.replies[-1].content if trajectory.replies else ""
        return Verdict(float(self.open and trajectory.stop == "done"), {"said": float("open" in said)})

    async def close(self) -> None:
        self.safe.closed += 1

    def _answer(self, call) -> dict:
        number = int(self.row.fields["expected_answer"])
        given = call.arguments.get("number") if call.name == "dial" else None
        self.open = self.open or given == number
        text = {"open": self.open} if isinstance(given, int) else {"error": "give an integer"}
        return {"role": "tool", "content": json.dumps(text), "tool_call_id": ""}

    def _may_fail(self, call: str) -> None:
        if self.safe.fails == call:
            raise RuntimeError(f"{call} does not work")


def safe_row(number: int) -> Row:
    request = {"input": [{"role": "user", "content": f"Open {number}."}], "tools": [DIAL]}
    record = {"kind": "math", "expected_answer": number, "responses_create_params": request, "seen": {"by": ["x"]}}
    return parse_row(record, where="here")


def dials(*numbers: int | str) -> str:
    """What an assistant writes to dial numbers."""
    calls = [
        f"<tool_call>\n<function=dial>\n<parameter=number>\n{n}\n</parameter>\n</function>\n</tool_call>"
        for n in numbers
    ]
    return "\n".join(calls)
