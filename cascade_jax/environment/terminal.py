"""Tasks of a terminal: a folder in the Harbor format, a shell in /app, and the reward that tests/test.sh writes."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_jax.environment.harbor import WORK, File, Task, read_task
from cascade_jax.environment.shell import SUBMIT, Shell, ShellLimits, masked, opening
from cascade_jax.reward.sandbox import Sandbox, SandboxBroken
from cascade_jax.reward.swe.grading import MIB, Room
from cascade_jax.reward.verdict import unjudged
from cascade_jax.rollout.environment import Observation, Opening, Trajectory, unfinished
from cascade_jax.types import Reply, Row, Verdict

_INSTRUCTIONS = (
    "You work in a terminal, in the folder /app. Answer every time with a short thought and exactly one command{way}. "
    f"Each command runs in a new bash, so only files last. When all is done, give this command alone: echo {SUBMIT}"
)
_FOLDERS = (WORK, "tests", "logs", "solution")
# The assistant may have left anything where the tests and their reward go.
_CLEAR = "cd /tmp && chmod -R u+rwx {0} 2> /dev/null; rm -rf {0} && mkdir -p tests logs/verifier home"
_REWARDS = ("/tmp/logs/verifier/reward.json", "/tmp/logs/verifier/reward.txt")
_SECONDS = 60.0


@dataclass(frozen=True)
class Terminal:
    """The number that tests/test.sh writes to /logs/verifier/reward.txt (or .json).

    0 where it fails without one. Masked is what took too long or too much memory, and a success that never came to its
    end. Settings as in `SoftwareRepair`; task.toml's own limits of time go before these.
    """

    turns: int = 100
    packages: Sequence[str] = ()
    instructions: bool = False
    tools: bool = True
    command_seconds: float = 300.0
    commands_seconds: float = 1800.0
    tests_seconds: float = 600.0
    shown: int = 10_000
    memory: int = 2048
    disk: int = 1024
    resources: ClassVar[tuple[str, ...]] = ("sandbox",)

    def episode(self, row: Row, *, seed: int) -> "TerminalEpisode":
        return TerminalEpisode(self, row)


class TerminalEpisode:
    """One try. The tests come into the sandbox when the assistant has left it, and none of its processes lives."""

    def __init__(self, settings: Terminal, row: Row):
        self.settings, self.row = settings, row
        self.box: Sandbox | None = None

    async def start(self) -> Opening:
        """TaskError, SandboxBroken."""
        await asyncio.to_thread(self._open)
        return self._opening

    async def step(self, reply: Reply) -> Observation:
        return await asyncio.to_thread(self.shell.turn, reply)

    async def verdict(self, trajectory: Trajectory) -> Verdict:
        if self.shell.ended:
            return masked(f"the commands of the episode used up their {self.shell.ended}")
        return unfinished(await asyncio.to_thread(self._graded), trajectory)

    async def close(self) -> None:
        if self.box is not None:
            await asyncio.to_thread(self.box.close)

    def _open(self) -> None:
        settings = self.settings
        self.task: Task = read_task(self.row)
        room = Room(settings.memory * MIB, settings.disk * MIB, packages=tuple(settings.packages))
        self.box = room.open(*_FOLDERS)
        self.box.run(["mkdir", "-p", f"/tmp/{WORK}"])
        write_files(self.box, f"/tmp/{WORK}", self.task.part("environment"))
        self._opening = opening(self.row, instructions=settings.instructions, tools=settings.tools, text=_INSTRUCTIONS)
        self._env = {"PYTHONPATH": ":".join(room.library), "PAGER": "cat"}
        seconds = self.task.agent_seconds or settings.commands_seconds
        limits = ShellLimits(settings.command_seconds, seconds, settings.shown)
        self.shell = Shell(self.box, f"/{WORK}", limits, bool(self._opening.tools), self._env)

    def _graded(self) -> Verdict:
        env = {**self._env, "HOME": "/tmp/home", "PYTHONNOUSERSITE": "1", **self.task.verifier_env}
        try:
            cleared = self.box.run(["bash", "-c", _CLEAR.format("tests logs solution home")], seconds=_SECONDS)
            if cleared.returncode:
                return unjudged("the place of the tests cannot be cleared")
            write_files(self.box, "/tmp/tests", self.task.part("tests"))
            seconds = self.task.verifier_seconds or self.settings.tests_seconds
            argv = ["bash", "-c", f"cd /{WORK} 2> /dev/null || cd /tmp; exec bash /tests/test.sh"]
            done = self.box.run(argv, env=env, seconds=seconds)
        except (SandboxBroken, OSError) as error:
            return unjudged(f"the tests cannot be run: {error}")
        if done.killed:
            return masked(f"the tests used up their {done.killed}")
        info = {"tests": (done.stdout + done.stderr).decode(errors="replace")[-2000:]}
        found = next((data for path in _REWARDS if (data := _read(self.box, path)) is not None), None)
        if found is None:
            failed = Verdict(0.0, info={"reason": f"tests/test.sh ended with {done.returncode}", **info})
            return failed if done.returncode else unjudged("tests/test.sh wrote no reward", **info)
        reward = read_reward(found)
        return (
            unjudged(f"tests/test.sh wrote the reward {found[:60]!r}", **info)
            if reward is None
            else Verdict(reward, info=info)
        )


def write_files(box: Sandbox, folder: str, files: Mapping[str, File]) -> None:
    """Files by path into a folder of the sandbox. OSError: they do not fit."""
    for path, file in files.items():
        box.write(f"{folder}/{path}", file.data)
    executable = [f"{folder}/{path}" for path, file in files.items() if file.executable]
    if executable:
        box.run(["chmod", "+x", *executable])


def read_reward(data: bytes) -> float | None:
    """A number, or a JSON object whose `reward`, or only entry, is one. None: it is something else."""
    try:
        found: Any = json.loads(data)
    except ValueError:
        return None
    if isinstance(found, dict):
        found = found.get("reward", next(iter(found.values()), None) if len(found) == 1 else None)
    number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return float(found) if number and math.isfinite(found) else None


def _read(box: Sandbox, path: str) -> bytes | None:
    try:
        return box.read(path)
    except OSError:
        return None
