"""Runs a cascade on Google Kubernetes Engine: fills in launch/gke.yaml and gives it to kubectl.

    python -m launch.gke --name=cascade --topology=v5p:4x4x4 --image=IMAGE \\
        --config=configs/nemotron_cascade2_30b.py --workdir=/shared/runs/cascade [--config.X=VALUE ...] [--dry_run]

IMAGE is a container image whose working directory is this repository, installed there with
pip install -e '.[data,reward,report,convert,tpu]' (for GPUs: cuda). A dry run prints what every pod would run, as
comments above the filled-in file, so that kubectl takes all of its output.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from string import Template

from launch.hosts import Host, Parser, label, machine, parse, run_command, show
from launch.topology import KINDS, Topology

TEMPLATE = Path(__file__).with_name("gke.yaml")
TPU_PORT, GPU_PORT = 8482, 8476  # of process 0; JAX's own choice on TPUs
INDEX = "$(JOB_COMPLETION_INDEX)"  # Kubernetes puts the number of the pod in its place


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: kubectl's, or 0 for a dry run, or 2 for a user's mistake."""
    parser = Parser(prog="python -m launch.gke", description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, type=label, help="of the JobSet")
    parser.add_argument("--topology", required=True, type=machine, help="v5p:4x4x4, 2xv6e:16x16, h200:16, ...")
    parser.add_argument("--image", required=True, help="a container image; its working directory is this repository")
    parser.add_argument("--restarts", type=int, default=100, help="how often all pods may start again (100)")
    given, overrides = parse(parser, sys.argv[1:] if arguments is None else arguments)
    command = [given.config, given.workdir, overrides]
    filled = fill(given.name, given.topology, given.image, *command, restarts=given.restarts)
    if given.dry_run:
        print(textwrap.indent(show(hosts(given.name, given.topology, *command)), "# ", lambda line: True) + filled)
        return 0
    try:
        return subprocess.run(["kubectl", "apply", "--filename=-"], input=filled, text=True, check=False).returncode
    except FileNotFoundError:
        parser.error("kubectl is not on the PATH; install it, or give the output of --dry_run to it elsewhere")


def hosts(name: str, topology: Topology, config: str, workdir: str, overrides: Sequence[str]) -> list[Host]:
    """What every pod runs, in the order of their processes."""
    first = f"{name}-slice-0-0.{name}"
    found = []
    for process in range(topology.hosts):
        number, pod = divmod(process, topology.hosts_per_slice)
        coordinator = f"{first}:{TPU_PORT} (GKE tells JAX)" if topology.is_tpu else f"{first}:{GPU_PORT}"
        found.append(
            Host(
                f"pod {name}-slice-{number}-{pod}, {topology.chips_per_host} x {topology.kind}",
                coordinator if topology.hosts > 1 else "none, it is alone",
                run_command(config, workdir, overrides, place=_place(name, topology, process)),
                environment(topology),
            )
        )
    return found


def environment(topology: Topology) -> dict[str, str]:
    """Without it, JAX would go on with the CPU where it finds no accelerator."""
    return {"JAX_PLATFORMS": "tpu" if topology.is_tpu else "cuda"}


def _place(name: str, topology: Topology, process: int | str) -> tuple[str, int, int | str] | None:
    """JAX finds TPU pods by itself; GPU pods only with rights to ask Kubernetes, which flags make needless."""
    if topology.is_tpu or topology.hosts == 1:
        return None
    return f"{name}-slice-0-0.{name}:{GPU_PORT}", topology.hosts, process


def fill(
    name: str, topology: Topology, image: str, config: str, workdir: str, overrides: Sequence[str], *, restarts: int
) -> str:
    """gke.yaml with values in it, each written as JSON, which YAML reads: no text breaks out of its place."""
    kind = KINDS[topology.kind]
    selector = {"cloud.google.com/gke-accelerator": kind.gke}
    if topology.is_tpu:
        shape = "x".join(str(side) for side in topology.shape)
        selector = {"cloud.google.com/gke-tpu-accelerator": kind.gke, "cloud.google.com/gke-tpu-topology": shape}
    # Kubernetes reads $(NAME) and $$ in a command; everything but the pod's index is meant as it stands.
    command = [part.replace("$", "$$") for part in run_command(config, workdir, overrides)]
    place = _place(name, topology, INDEX)
    if place is not None:
        command = [*command, *run_command("", "", place=place)[-3:]]
    values = {
        "name": name,
        # A slice is a node pool, and takes all of it.
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
        if topology.is_tpu
        else {},
        "restarts": restarts,
        "slices": topology.slices,
        "hosts": topology.hosts_per_slice,
        "node_selector": selector,
        "image": image,
        "command": command,
        "environment": [{"name": key, "value": value} for key, value in environment(topology).items()],
        "port": TPU_PORT if topology.is_tpu else GPU_PORT,
        "limits": {"google.com/tpu" if topology.is_tpu else "nvidia.com/gpu": str(topology.chips_per_host)},
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    body = text.partition("\napiVersion:")[2]  # the comment above it is about the template
    written = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return Template("apiVersion:" + body).substitute(written)


if __name__ == "__main__":
    sys.exit(main())
