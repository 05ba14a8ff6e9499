"""Runs a command again while it asks for that: python -m launch.restart [--attempts=N] -- python -m launch.run ..."""

import argparse
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cascade_jax.peers import MISTAKE, RESTART

EPILOG = f"""The command is started again when it ends with exit code {RESTART} (SIGTERM, maintenance, a lost process)
or is killed by a signal. SIGTERM and Ctrl-C are passed on to it, and then it is not started again: the loop ends with
{RESTART} after SIGTERM, so that whoever sent it can start the loop elsewhere. A step that is logged below the command's
--workdir=FOLDER is progress: it sets the count of attempts and the wait back."""
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds; doubles with each attempt. The peers of a killed process end meanwhile.


class Loop:
    """The command's attempts, one after the other. `workdir`: where steps are logged, None where it does not say."""

    def __init__(self, command: Sequence[str], *, attempts: int, workdir: Path | None) -> None:
        self.command, self.attempts, self.workdir = list(command), attempts, workdir
        self.child: subprocess.Popen | None = None
        self.asked: int | None = None  # the signal that ends the loop
        self.woken = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        """The exit code: the command's, 75 after SIGTERM, or 1 where it makes no progress any more."""
        best, idle = steps_done(self.workdir), 0
        while True:
            code = self._attempt()
            if self.asked is not None:
                return code if code >= 0 else RESTART if self.asked == signal.SIGTERM else 128 - code
            if not asks_for_restart(code):
                return code if code >= 0 else 128 - code
            done = steps_done(self.workdir)
            best, idle = (done, 0) if done > best else (best, idle + 1)
            if idle >= self.attempts:
                print(f"Giving up: {idle} attempts in a row ended ({why(code)}) without a new step.", file=sys.stderr)
                return 1
            wait = min(FIRST_WAIT * 2 ** max(idle - 1, 0), LONGEST_WAIT)
            print(f"The command ended ({why(code)}); starting it again in {wait:g} s.", file=sys.stderr, flush=True)
            if self.woken.wait(wait):
                return RESTART if self.asked == signal.SIGTERM else 0

    def _attempt(self) -> int:
        # In a group of its own, so that a terminal's Ctrl-C reaches it once: through this process.
        self.child = subprocess.Popen(self.command, process_group=0)
        if self.asked is not None:  # came while it was being started
            self.child.send_signal(self.asked)
        return self.child.wait()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self.woken.set()
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)


def asks_for_restart(code: int) -> bool:
    """Whether to start a command again that ended so; a shell in between reports signal n as 128 + n."""
    number = -code if code < 0 else code - 128
    return code == RESTART or (0 < number < 65 and number != signal.SIGINT)


def why(code: int) -> str:
    number = -code if code < 0 else code - 128
    return f"signal {number}" if 0 < number < 65 else f"exit code {code}"


def steps_done(workdir: Path | None) -> int:
    """The logged steps and finished stages of a run."""
    if workdir is None or not (workdir / "manifest.json").exists():
        return 0
    stages = json.loads((workdir / "manifest.json").read_text())["stages"].values()
    logs = workdir.glob("stages/*/metrics.jsonl")
    return sum(stage["status"] == "finished" for stage in stages) + sum(log.read_bytes().count(b"\n") for log in logs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: see `Loop.run`; 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.restart",
        usage="python -m launch.restart [--attempts=N] -- COMMAND ...",
        description=__doc__,
        epilog=EPILOG,
    )
    parser.add_argument("--attempts", type=int, default=5, help="in a row without a new step, then give up (default 5)")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="e.g. python -m launch.run --config=... --workdir=..."
    )
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command or given.attempts < 1:
        what = "--attempts must be 1 or more" if command else "there is no command"
        print(
            f"error: {what}; write python -m launch.restart --attempts=5 -- python -m launch.run ...", file=sys.stderr
        )
        return MISTAKE
    try:
        return Loop(command, attempts=given.attempts, workdir=workdir_of(command)).run()
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error}", file=sys.stderr)
        return MISTAKE


def workdir_of(command: Sequence[str]) -> Path | None:
    """FOLDER of --workdir=FOLDER or --workdir FOLDER."""
    for argument, following in zip(command, [*command[1:], ""], strict=True):
        name, given, value = argument.partition("=")
        if name.lstrip("-") == "workdir":
            return Path(value if given else following)
    return None


if __name__ == "__main__":
    sys.exit(main())
