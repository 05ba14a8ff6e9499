"""Repair of a repository with a shell, graded by its tests in a fresh checkout (recipe.md 13).

Rows as `cascade_jax.reward.swe.instance` reads them: SWE-Gym, R2E-Gym, SWE-RL of Nemotron-Cascade 2, generated ones.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cascade_jax.environment.shell import SUBMIT, Shell, ShellLimits, masked, opening
from cascade_jax.reward.sandbox import Sandbox, SandboxBroken
from cascade_jax.reward.swe.grading import GIT, MIB, ROOT, Room, checkout, grade, said
from cascade_jax.reward.swe.history import Snapshot, snapshot
from cascade_jax.reward.swe.instance import Instance, InstanceError, read_instance
from cascade_jax.reward.verdict import unjudged, wrong
from cascade_jax.rollout.environment import Observation, Opening, Trajectory, unfinished
from cascade_jax.types import Reply, Row, Verdict

_INSTRUCTIONS = (
    "You repair a bug in the git repository of the current folder. Answer every time with a short thought and exactly "
    "one command{way}. Each command runs in a new bash, so only changes of files last. Look at the code, reproduce the "
    "bug, change the source and check it. Edits of tests do not count. When the bug is gone, give this command alone: "
    f"echo {SUBMIT}"
)
_DIFF = """cd "$1" && rm -f "$2" && export GIT_INDEX_FILE="$2" && git read-tree "$3" && git add -A . &&
git diff --cached --no-renames --no-ext-diff --name-status -z "$3"
"""
_MOST_FILES, _MOST_BYTES = 1000, 32 << 20  # of an answer
_DIFF_SECONDS = 120.0


class NoAnswer(Exception):
    """What the agent left behind is no repository with a repair in it. That is its own fault."""


@dataclass(frozen=True)
class SoftwareRepair:
    """1 if FAIL_TO_PASS and PASS_TO_PASS all pass, else 0.

    Masked is what took too long or too much memory, commands and tests alike, and what was repaired but never came to
    its end. `repositories`: a folder with clones or bundles of the rows' `repo`; `packages`: folders with what these
    import. `instructions`: a system message about the shell, and the tool `bash` (without `tools`: code blocks), go
    before the row's own messages. Times in seconds, sizes in MiB, `shown` in characters of a command's output.
    """

    turns: int = 200
    repositories: str = ""
    packages: Sequence[str] = ()
    instructions: bool = False
    tools: bool = True
    command_seconds: float = 300.0
    commands_seconds: float = 1800.0  # of all commands of an episode
    tests_seconds: float = 1200.0
    shown: int = 10_000
    memory: int = 2048
    disk: int = 1024
    resources: ClassVar[tuple[str, ...]] = ("sandbox",)

    @property
    def room(self) -> Room:
        return Room(self.memory * MIB, self.disk * MIB, packages=tuple(self.packages))

    def episode(self, row: Row, *, seed: int) -> "RepairEpisode":
        return RepairEpisode(self, row)


class RepairEpisode:
    """One try. The agent's sandbox holds the history up to the row's commit, no hidden tests, and nothing later."""

    def __init__(self, settings: SoftwareRepair, row: Row):
        self.settings, self.row = settings, row
        self.box: Sandbox | None = None

    async def start(self) -> Opening:
        """InstanceError, SandboxBroken."""
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
        settings, row = self.settings, self.row
        self.instance: Instance = read_instance(row, repositories=settings.repositories)
        self.start_state: Snapshot = snapshot(self.instance)
        self.box = settings.room.open()
        checkout(self.box, self.start_state)
        self._opening = opening(row, instructions=settings.instructions, tools=settings.tools, text=_INSTRUCTIONS)
        env = GIT | {"PYTHONPATH": ":".join(settings.room.library), "PAGER": "cat"}
        limits = ShellLimits(settings.command_seconds, settings.commands_seconds, settings.shown)
        self.shell = Shell(self.box, f"{self.box.folder}/{ROOT}", limits, bool(self._opening.tools), env)

    def _graded(self) -> Verdict:
        try:
            changes = changed_files(self.box, self.start_state.commit)
            self.box.close()
            if not changes:
                return wrong("nothing was changed")
            found = grade(self.instance, changes, self.settings.room, seconds=self.settings.tests_seconds)
        except NoAnswer as error:
            return wrong(str(error))
        except (InstanceError, SandboxBroken) as error:
            return unjudged(str(error))
        if found.timed_out or found.out_of_memory:
            return masked(found.reason)
        info = {"changed": sorted(changes), "reason": found.reason, "failed": list(found.failed[:20])}
        return Verdict(float(found.resolved), {"tests_passed": found.passed / found.asked}, info)


def changed_files(box: Sandbox, base: str) -> dict[str, bytes | None]:
    """What differs from the commit `base` in the agent's repository, committed or not. NoAnswer."""
    done = box.run(["bash", "-c", _DIFF, "diff", ROOT, "/tmp/answer.index", base], env=GIT, seconds=_DIFF_SECONDS)
    if done.returncode or done.clipped:
        raise NoAnswer(f"the repository cannot be compared with its start: {said(done)}")
    parts = done.stdout.decode(errors="surrogateescape").split("\0")
    states = dict(zip(parts[1::2], parts[0::2], strict=False))
    if len(states) > _MOST_FILES:
        raise NoAnswer(f"{len(states)} files are changed, more than {_MOST_FILES}")
    found: dict[str, bytes | None] = {}
    for path, state in states.items():
        try:
            found[path] = None if state == "D" else box.read(f"{ROOT}/{path}")
        except OSError:  # a link to a folder, or a repository within this one
            continue
        if sum(len(data or b"") for data in found.values()) > _MOST_BYTES:
            raise NoAnswer(f"the changed files are larger than {_MOST_BYTES >> 20} MiB")
    return found
