"""An environment for tests: the assistant names numbers, is told "more" or "less", and ends with the right one."""

import asyncio
import math
import threading

from cascade_jax.rollout.environment import Observation, Opening
from cascade_jax.types import Row, Verdict


class Guessing:
    """row.fields["number"] is to be named. Keeps what happened to its episodes for the tests to look at."""

    resources = ()

    def __init__(self, *, turns: int = 4, role: str = "user", fails: dict[int, str] | None = None) -> None:
        """fails: episode (in the order of opening) -> the call that raises ("episode", "start", "step", ...)."""
        self.turns, self.role, self.fails = turns, role, fails or {}
        self.opened = self.closed = self.now = self.most = 0
        self.seeds: list[int] = []
        self.trajectories = []
        self.lock = threading.Lock()

    def episode(self, row: Row, *, seed: int) -> "Guess":
        with self.lock:
            number, self.opened = self.opened, self.opened + 1
            self.seeds.append(seed)
        fails = self.fails.get(number, "")
        if fails == "episode":
            raise OSError("no room")
        return Guess(self, row, fails)


class Guess:
    def __init__(self, of: Guessing, row: Row, fails: str) -> None:
        self.of, self.row, self.fails = of, row, fails

    async def start(self) -> Opening:
        await self._may_fail("start")
        return Opening(self.row.messages, self.row.tools)

    async def step(self, reply) -> Observation:
        self.of.now += 1
        self.of.most = max(self.of.most, self.of.now)
        await asyncio.sleep(0.001)
        self.of.now -= 1
        await self._may_fail("step")
        word = reply.content.strip()
        if word == str(self.row.fields["number"]):
            return Observation(done=True)
        guess = int(word) if word.isdecimal() else math.inf
        text = "less" if guess > self.row.fields["number"] else "more"
        message = {"role": self.of.role, "content": text}
        return Observation(({**message, "tool_call_id": "call_0"} if self.of.role == "tool" else message,))

    async def verdict(self, trajectory) -> Verdict:
        self.of.trajectories.append(trajectory)
        await self._may_fail("verdict")
        right = trajectory.replies[-1].content.strip() == str(self.row.fields["number"])
        return Verdict(float(right), {"turns": len(trajectory.replies)})

    async def close(self) -> None:
        self.of.closed += 1
        await self._may_fail("close")

    async def _may_fail(self, call: str) -> None:
        if self.fails == call:
            raise RuntimeError(f"{call} does not work")
        if self.fails == f"{call} hangs":
            await asyncio.sleep(600)
        if self.fails == f"{call} is cancelled":
            raise asyncio.CancelledError
        if self.fails == f"{call} exits":
            raise SystemExit(3)


def guess_row(number: int, name: str = "r") -> Row:
    return Row(name, "guess", ({"role": "user", "content": f"Name {number}."},), fields={"number": number})
