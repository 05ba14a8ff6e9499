"""What each host of a cluster runs, in the same words for every launcher, and how a dry run shows it.

Standard library alone: a launcher runs where nothing is installed.
"""

import argparse
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from launch.topology import Topology, topology


@dataclass(frozen=True)
class Host:
    """One process: where it runs, where process 0 listens, and its whole command."""

    where: str
    coordinator: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Parser(argparse.ArgumentParser):
    """A user's mistake is one sentence and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.rstrip('.')}; see --help.\n")


def parse(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(what was given, the overrides --config.X=VALUE in their order). Adds the flags that all launchers share."""
    parser.add_argument("--config", required=True, metavar="FILE.py", help="as for launch.run")
    parser.add_argument("--workdir", required=True, metavar="FOLDER", help="as for launch.run; all hosts must see it")
    parser.add_argument("--dry_run", action="store_true", help="print what each host would run; start nothing")
    parser.epilog = "--config.X.Y=VALUE overrides a setting, as for launch.run."
    overrides = [argument for argument in arguments if argument.startswith("--config.")]
    given = parser.parse_args([argument for argument in arguments if not argument.startswith("--config.")])
    for override in overrides:
        if "=" not in override:
            parser.error(f"{override} has no value; write {override}=VALUE")
    path = given.config.partition(":")[0]
    if not os.path.isfile(path):
        parser.error(f"there is no config file {path!r}; give one with get_config(), e.g. from configs/")
    if not given.workdir:
        parser.error("--workdir is empty; give a folder that all hosts see")
    return given, overrides


def machine(name: str) -> Topology:
    """--topology's type for argparse."""
    try:
        return topology(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def label(name: str) -> str:
    """--name's type for argparse: what Google and Kubernetes take for one, and short enough for what they add to it."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no name; take up to 40 small letters, digits and dashes, a letter first and no dash last"
        )
    return name


def run_command(
    config: str,
    workdir: str,
    overrides: Sequence[str] = (),
    *,
    python: str = "python",
    place: tuple[str, int, int | str] | None = None,
) -> list[str]:
    """The command of one process, which is started again while it asks for it (exit code 75).

    `place`: (HOST:PORT of process 0, processes, this process), where JAX cannot find the cluster by itself.
    """
    command = [python, "-m", "launch.restart", "--", python, "-m", "launch.run"]
    command += [f"--config={config}", f"--workdir={workdir}", *overrides]
    if place is not None:
        coordinator, processes, process = place
        command += [f"--coordinator={coordinator}", f"--processes={processes}", f"--process={process}"]
    return command


def show(hosts: Sequence[Host]) -> str:
    """A paragraph for each host. Its command is quoted for a shell."""
    lines = []
    for process, host in enumerate(hosts):
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(host.environment.items()))
        lines += [
            f"process {process} of {len(hosts)}: {host.where}",
            f"  coordinator: {host.coordinator}",
            f"  environment: {environment or '(as it is)'}",
            f"  command: {shlex.join(host.command)}",
        ]
    return "\n".join(lines) + "\n"
