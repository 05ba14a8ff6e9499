"""A shell in a sandbox, one command a turn, in the convention of mini-swe-agent (arXiv 2405.15793 and its successors).

A reply calls the tool `bash` once or, where no tools are offered, holds one code block. Every command runs in a shell
of its own, so only files last. The episode is over when the first line of a command's output is SUBMIT.
"""

import math
import re
from dataclasses import dataclass, field

from cascade_jax.reward.sandbox import Finished, Sandbox
from cascade_jax.rollout.environment import Message, Observation, Opening
from cascade_jax.types import Reply, Row, Verdict

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
BASH: Message = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run one command in a new bash, in the folder of the task.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_BLOCK = re.compile(r"^```(?:mswea_bash_command|bash|sh)?[ \t]*\n(.*?)\n?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_MERGED = 'exec 2>&1; cd "$1" && exec bash -c "$2"'


@dataclass(frozen=True)
class ShellLimits:
    """Seconds of one command and of all commands of an episode; `shown` characters of output."""

    command: float = 300.0
    commands: float = 1800.0
    shown: int = 10_000


@dataclass
class Shell:
    """Runs what replies ask for. `used`: seconds so far. `ended`: why the episode cannot go on, else empty."""

    box: Sandbox
    folder: str
    limits: ShellLimits
    tools: bool  # whether replies call a tool
    env: dict[str, str] = field(default_factory=dict)
    used: float = 0.0
    ended: str = ""  # "time" or "memory"
    calls: int = 0  # in all replies so far; this is how their ids count

    def turn(self, reply: Reply) -> Observation:
        """What the reply's command says. Blocking. SandboxBroken."""
        command = read_command(reply, tools=self.tools)
        first, self.calls = self.calls, self.calls + len(reply.tool_calls)
        if command is None:
            return Observation(self._said(reply, first, self._rule()))
        left = self.limits.commands - self.used
        argv = ["bash", "-c", _MERGED, "shell", self.folder, command]
        done = self.box.run(argv, env=self.env, seconds=min(self.limits.command, left))
        self.used += done.seconds
        if done.out_of_memory:
            self.ended = "memory"
        elif self.used >= self.limits.commands:
            self.ended = "time"
        text = done.stdout.decode(errors="replace")
        submitted = done.returncode == 0 and text.lstrip().partition("\n")[0].strip() == SUBMIT
        if submitted or self.ended:
            return Observation(done=True)
        return Observation(self._said(reply, first, shown(text, done, self.limits.shown)))

    def _rule(self) -> str:
        way = "one call of bash" if self.tools else "one ``` block"
        return f"Give exactly {way} with one command. End with: echo {SUBMIT}"

    def _said(self, reply: Reply, first: int, text: str) -> tuple[Message, ...]:
        if not reply.tool_calls:
            return ({"role": "user", "content": text},)
        ids = [f"call_{first + i}" for i in range(len(reply.tool_calls))]
        return tuple({"role": "tool", "tool_call_id": name, "content": text} for name in ids)


def read_command(reply: Reply, *, tools: bool) -> str | None:
    """The one command of a reply; None where there is none, or more than one."""
    if reply.malformed is not None:
        return None
    if tools:
        commands = [call.arguments.get("command") for call in reply.tool_calls if call.name == "bash"]
        commands = commands if len(reply.tool_calls) == 1 else []
    else:
        commands = _BLOCK.findall(reply.content)
    command = commands[0] if len(commands) == 1 else None
    return command if isinstance(command, str) and command.strip() and "\0" not in command else None


def shown(text: str, done: Finished, most: int) -> str:
    """What the assistant reads: the output, its middle left out where it is long, and how the command ended."""
    text = text.strip("\n")
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :]}"
    end = f"[killed: {done.killed}]" if done.killed else f"[exit {done.returncode}]" if done.returncode else ""
    return "\n".join(part for part in (text, end) if part) or "[no output]"


def opening(row: Row, *, instructions: bool, tools: bool, text: str) -> Opening:
    """The row's messages and tools, or the instructions before its messages."""
    if not instructions:
        return Opening(row.messages, row.tools)
    way = "" if tools else " in a ```bash block"
    own = tuple(message for message in row.messages if message["role"] != "system")
    return Opening(({"role": "system", "content": text.format(way=way)}, *own), (BASH,) if tools else ())


def masked(reason: str) -> Verdict:
    """No verdict by a rule of the recipe, not since something broke."""
    return Verdict(math.nan, {"masked": 1.0}, no_verdict=reason)
