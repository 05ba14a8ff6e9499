"""Runs a cascade as an XManager experiment: on this machine, as a SLURM job, or on Vertex AI.

    pip install xmanager
    python -m launch.xm_launch --executor=local --config=configs/tiny_cascade.py --workdir=runs/tiny
    python -m launch.xm_launch --executor=slurm --topology=h200:16 --config=... --workdir=... [--config.X=VALUE ...]
    python -m launch.xm_launch --executor=vertex --topology=a100:8 --image=IMAGE --config=... --workdir=... [--dry_run]

XManager has no executor of its own for SLURM: its local one runs sbatch and waits for the job. Its Vertex AI executor
knows, of the machines that do, those with up to eight A100s. For TPU slices: launch/tpu_pod.sh and launch/gke.py.
"""

import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence

from launch.hosts import Host, Parser, label, machine, parse, run_command, show

PORT = 8476  # of process 0, where several run on this machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where all jobs ended well, 1 where one did not, 2 for a user's mistake."""
    parser = Parser(prog="python -m launch.xm_launch", description=__doc__.splitlines()[0])
    parser.add_argument("--executor", choices=("local", "slurm", "vertex"), default="local")
    parser.add_argument("--name", type=label, default="cascade", help="of the experiment (cascade)")
    parser.add_argument("--processes", type=int, default=1, help="how many on this machine (local; 1)")
    parser.add_argument("--topology", type=machine, help="h200:16, a100:8, ... (slurm, vertex)")
    parser.add_argument("--image", help="a container image as for launch.gke, without an entry point (vertex)")
    given, overrides = parse(parser, sys.argv[1:] if arguments is None else arguments)
    _check(parser, given)
    if given.dry_run and given.executor == "slurm":
        script = ["bash", *script_of(given, overrides), f"--nodes={given.topology.hosts}", "--dry_run"]
        return subprocess.run(script, check=False).returncode
    if given.dry_run:
        print(show(hosts(given, overrides)), end="")
        return 0
    try:
        import xmanager.xm_local  # noqa: F401
    except ImportError:
        parser.error("the package xmanager is not installed; run pip install xmanager")
    return launch(given, overrides)


def _check(parser: Parser, given: Namespace) -> None:
    """What this executor needs is there, and nothing that it would ignore."""
    topology, executor = given.topology, given.executor
    if given.processes < 1 or (executor != "local" and given.processes > 1):
        parser.error(f"--processes={given.processes} does not fit; it is how many the local executor runs, 1 or more")
    if (topology is None) != (executor == "local"):
        parser.error(f"--topology is for slurm and vertex, and needed there; --executor is {executor}")
    if (given.image is None) != (executor != "vertex"):
        parser.error(f"--image is for vertex, and needed there; --executor is {executor}")
    if executor == "slurm" and topology.is_tpu:
        parser.error(f"--topology={topology.name} is a TPU slice; SLURM runs on GPUs, e.g. h200:16")
    if executor == "vertex" and (topology.kind != "a100" or topology.hosts > 1):
        parser.error(
            f"--topology={topology.name} is none that XManager has on Vertex AI; take a100:8, or launch/gke.py"
        )


def hosts(given: Namespace, overrides: Sequence[str]) -> list[Host]:
    """The processes of the local and of the Vertex executor."""
    if given.executor == "vertex":
        where = f"a machine of type {given.topology.gcp_type}"
        command = run_command(given.config, given.workdir, overrides)
        return [Host(where, "none, it is alone", command, {"JAX_PLATFORMS": "cuda"})]
    found = []
    for process in range(given.processes):
        place = (f"localhost:{PORT}", given.processes, process) if given.processes > 1 else None
        command = run_command(given.config, given.workdir, overrides, python=sys.executable, place=place)
        found.append(Host("this machine", place[0] if place else "none, it is alone", command))
    return found


def sbatch(given: Namespace, overrides: Sequence[str]) -> list[str]:
    """sbatch, waiting for the job."""
    topology = given.topology
    options = [f"--nodes={topology.hosts}", f"--gpus-per-node={topology.chips_per_host}"]
    return ["sbatch", "--wait", f"--job-name={given.name}", *options, *script_of(given, overrides)]


def script_of(given: Namespace, overrides: Sequence[str]) -> list[str]:
    """launch/slurm.sbatch with its arguments."""
    return ["launch/slurm.sbatch", f"--config={given.config}", f"--workdir={given.workdir}", *overrides]


def launch(given: Namespace, overrides: Sequence[str]) -> int:
    """Package and start the jobs, and wait for those that run on this machine."""
    from absl import flags
    from google.auth.exceptions import GoogleAuthError
    from xmanager import xm, xm_local

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["xm_launch"])  # XManager's own settings, at their defaults
    if given.executor == "slurm":
        commands = [(sbatch(given, overrides), {})]
    else:
        commands = [(host.command, dict(host.environment)) for host in hosts(given, overrides)]
    executor = xm_local.Local()
    if given.executor == "vertex":
        executor = xm_local.Vertex(xm.JobRequirements(a100=given.topology.chips))
    try:
        with xm_local.create_experiment(experiment_title=given.name) as experiment:
            packages = []
            for command, environment in commands:
                if given.executor == "vertex":
                    more = {"args": list(command), "env_vars": environment}
                    packages.append(xm.container(executor.Spec(), image_path=given.image, **more))
                else:
                    more = {"args": list(command[1:]), "env_vars": environment}
                    packages.append(xm.binary(executor.Spec(), path=shutil.which(command[0]) or command[0], **more))
            executables = experiment.package(packages)
            jobs = {f"process{i}": xm.Job(executable, executor) for i, executable in enumerate(executables)}
            experiment.add(xm.JobGroup(**jobs))
    except (RuntimeError, ValueError, GoogleAuthError) as error:  # a job ended badly, no program, no credentials
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
