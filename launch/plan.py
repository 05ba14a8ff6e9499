"""What a run would need on machines that are not here: python -m launch.plan --config=... --topology=v5p:4x4x4."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # only compilers are asked, no device

import jax
from absl import flags, logging
from rich.console import Console
from rich.table import Table

from cascade_jax.checkpoint import read_config
from cascade_jax.config import CascadeConfig, ConfigError, MeshConfig, ModelConfig
from cascade_jax.manifest import write_json
from cascade_jax.mesh import make_mesh
from cascade_jax.model import apply, presets
from cascade_jax.plan.chips import CHIPS, GIB, Chip, described
from cascade_jax.plan.compiled import Compiled, compiled
from cascade_jax.plan.recipe import ANSWER, REACHED, StageTime, days, stage_time
from cascade_jax.plan.steps import Step, steps
from cascade_jax.workbench import check_mesh
from launch.command import cascade_config, define_config, guarded, parse
from launch.topology import Topology, topology
from pallas_kernels.dispatch import preferring

USAGE = """Compile the steps of a run for machines that are not here, and say whether they fit and what they will cost.

    python -m launch.plan --config=configs/nemotron_cascade2_30b.py --topology=v5p:4x4x4,v6e:16x16

--config=FILE.py        the run; --config.X=VALUE changes a setting of it, e.g. --config.mesh.context=16
--topology=NAME,...     v5p:4x4x4, v6e:8x8, 2xv5p:4x4x4, h200:8, ...; python -m launch.topology says what a name means
--stages=NAME,...       these stages alone (default: all); stages with the same programs are compiled once
--steps=NAME,...        these of update, teacher, prefill, decode (default: all)
--model=PRESET          the network, where the config names a checkpoint that is not here
--decoded=N             rows that a device decodes at a time (default: 32)
--time_only             no compiling: arithmetic, memory and link traffic by our own count
--json=FILE             the same as JSON

A full step of a 30B network takes minutes to compile. What was compiled is kept in ~/.cache/cascade_jax/plan.
Needs the compiler of the machine: pip install 'cascade-jax[tpu]' or 'cascade-jax[cuda]'."""

CONFIG = define_config()
TOPOLOGY = flags.DEFINE_list("topology", None, "Names of machines.")
STAGES = flags.DEFINE_list("stages", [], "These stages alone.")
STEPS = flags.DEFINE_list("steps", ["update", "teacher", "prefill", "decode"], "These programs alone.")
MODEL = flags.DEFINE_string("model", "", "A preset in place of the config's checkpoint.")
DECODED = flags.DEFINE_integer("decoded", 32, "Rows that a device decodes at a time.", lower_bound=1)
TIME_ONLY = flags.DEFINE_bool("time_only", False, "Compile nothing.")
JSON = flags.DEFINE_string("json", "", "A file for the results.")

ROOM = 0.8  # of a device's memory that a plan may take: the rest is for fragments and what runs beside it
KEPT = Path("~/.cache/cascade_jax/plan").expanduser()


def main() -> int:
    if {"--help", "-help", "-h"} & set(sys.argv[1:]):
        print(USAGE)
        return 0
    left_over = parse(sys.argv)
    if left_over or not TOPOLOGY.value:
        given = f"{left_over[0]!r} is no argument" if left_over else "--topology is missing"
        raise flags.IllegalFlagValueError(f"{given}; write --topology=v5p:4x4x4 and see --help.")
    logging.set_verbosity(logging.ERROR)
    jax.config.update("jax_traceback_in_locations_limit", 0)  # else kernels carry the paths of their source
    config = cascade_config(CONFIG)
    names = STAGES.value or list(config.order)
    unknown = sorted(set(names) - set(config.order))
    if unknown:
        raise ConfigError(f"there is no stage {unknown[0]!r} in the config; it has {', '.join(config.order)}.")
    model, results, console = network(config), [], Console(width=None if sys.stdout.isatty() else 150)
    command = [argument for argument in sys.argv[1:] if not argument.startswith("--json")]
    for name in TOPOLOGY.value:
        results.append({"command": command, "jax": jax.__version__, **plan_of(config, model, name, names, console)})
    if JSON.value:
        write_json(Path(JSON.value), results)
    return 0


def network(config: CascadeConfig) -> ModelConfig:
    """The network alone: of the preset, or out of the config.json of the checkpoint."""
    if MODEL.value or config.model:
        return apply.pad_experts(presets.get(MODEL.value or config.model))
    folder = Path(config.checkpoint)
    if not (folder / "config.json").exists():
        known = ", ".join(presets.PRESETS)
        raise ConfigError(f"checkpoint={config.checkpoint!r} is not here; name its network: --model=ONE OF {known}.")
    return apply.pad_experts(read_config(folder))


def plan_of(
    config: CascadeConfig, model: ModelConfig, name: str, stages: list[str], console: Console
) -> dict[str, Any]:
    """One machine's table, printed as it comes, and the same as plain values."""
    try:
        machine = topology(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    chip = CHIPS[machine.kind]
    model = model if config.remat == "auto" else dataclasses.replace(model, remat=config.remat)
    config = dataclasses.replace(config, mesh=fitting(config.mesh, machine))
    try:
        check_mesh(config, model)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    console.print(f"[bold]{name}[/bold]: {machine.chips} chips, mesh {shown(config.mesh)}")
    times = [stage_time(config, model, stage, chip, machine.devices, decoded=DECODED.value) for stage in stages]
    measured = {} if TIME_ONLY.value else compile_all(config, model, machine, stages, chip, console)
    report(times, machine, console)
    return {
        "topology": name,
        "mesh": dataclasses.asdict(config.mesh),
        "steps": {key: dataclasses.asdict(found) for key, found in measured.items()},
        "stages": {time.stage: {**dataclasses.asdict(time), "step": time.step} for time in times},
        "days": days(times),
    }


def fitting(mesh: MeshConfig, machine: Topology) -> MeshConfig:
    """The config's mesh, with as many slices as there are and fsdp over the devices that are left."""
    mesh = dataclasses.replace(mesh, slice=machine.slices)
    others = mesh.slice * mesh.data * mesh.expert * mesh.tensor * mesh.context
    if machine.devices % others:
        raise ConfigError(
            f"the mesh {shown(mesh)} does not divide the {machine.devices} devices of {machine.name}; "
            "change --config.mesh.expert, tensor or context."
        )
    return dataclasses.replace(mesh, fsdp=machine.devices // others)


def shown(mesh: MeshConfig) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in vars(mesh).items() if size > 1) or "of one device"


def compile_all(
    config: CascadeConfig, model: ModelConfig, machine: Topology, stages: list[str], chip: Chip, console: Console
) -> dict[str, Compiled]:
    """ "stage/step" -> what the compiler says, with a line for each as it is done."""
    try:
        devices = described(machine.kind, machine.shape, machine.slices)
        mesh = make_mesh(**dataclasses.asdict(config.mesh), devices=devices)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    table, found, programs = Table(title="memory of a device, GiB", title_justify="left"), {}, {}
    for column in ("stage", "step", "rows x tokens", "arguments", "scratch", "peak", "of memory", "compile", ""):
        table.add_column(column, justify="left" if column in ("stage", "step", "") else "right")
    for step in (step for stage in stages for step in steps(config, model, stage, mesh, decoded=DECODED.value)):
        if step.name not in STEPS.value:
            continue
        with console.status(f"{machine.name}: {step.stage} {step.name}"), preferring(config.kernels.named):
            lowered = step.lower()
            result = compiled(lowered, machine.name, KEPT)
        again = programs.setdefault(result.program, step.stage) != step.stage
        found[f"{step.stage}/{step.name}"] = result
        cells = (f"{size / GIB:.2f}" for size in (result.arguments, result.scratch, result.peak))
        share = f"{result.peak / chip.memory:.0%}"
        note = f"as {programs[result.program]}" if again else verdict(config, step, result, chip)
        shape = f"{step.rows} x {step.length}" + (f" in {step.passes}" if step.passes > 1 else "")
        table.add_row(step.stage, step.name, shape, *cells, share, f"{result.seconds:.0f} s", note)
    console.print(table)
    ledgers = Table(title="collectives in the text of a program: count, largest", title_justify="left")
    kinds = sorted({kind for result in found.values() for kind in result.collectives})
    for column in ("stage", "step", *kinds):
        ledgers.add_column(column, justify="left" if column in ("stage", "step") else "right")
    for key, result in found.items():
        moved = (result.collectives.get(kind) for kind in kinds)
        sizes = ("-" if each is None else f"{each.count}, {each.largest / 2**20:.1f} MiB" for each in moved)
        ledgers.add_row(*key.split("/"), *sizes)
    console.print(ledgers)
    return found


def verdict(config: CascadeConfig, step: Step, result: Compiled, chip: Chip) -> str:
    """fits, or by how much not and what to change."""
    over = result.peak - ROOM * chip.memory
    if not result.refused and over <= 0:
        return "fits"
    size = f"{over / GIB:.1f} GiB over {ROOM:.0%}" if result.peak else result.refused[:120]
    mesh = config.mesh
    shares = mesh.slice * mesh.data * mesh.fsdp * mesh.expert
    if result.arguments > ROOM * chip.memory / 2 and step.name in ("update", "teacher"):
        change = "weights and moments fill it: take a larger topology, or fewer data and more fsdp or expert parts"
    elif step.name == "decode":
        change = f"decode fewer rows at a time: --decoded={max(1, DECODED.value // 2)}"
    elif step.name == "prefill":
        change = "lower the largest of --config.buckets, or split heads: --config.mesh.tensor=2"
    elif step.rows > step.passes * shares:
        change = f"take one row at a time: --config.stages.{step.stage}.micro_batches={step.rows // shares}"
    else:
        change = f"split rows further: --config.mesh.context={2 * mesh.context}"
    return f"{size}; {change}"


def report(times: list[StageTime], machine: Topology, console: Console) -> None:
    """Time of each stage and of the whole."""
    title = (
        f"time of a step at the roofline, seconds; days at {REACHED:.0%} of it, answers of {ANSWER:.0%} of the limit"
    )
    table = Table(title=title, title_justify="left")
    for column in ("stage", "steps", "generate", "score", "train", "tokens/s/chip", "days", "training is bound by"):
        table.add_column(column, justify="left" if column in ("stage", "training is bound by") else "right")
    for time in times:
        spans = (f"{span:.1f}" if span else "-" for span in (time.generation, time.scoring, time.training))
        rate = f"{time.tokens / time.step / machine.chips * REACHED:.0f}"
        parts = sorted(time.parts.items(), key=lambda part: -part[1].seconds)
        whole = sum(part.seconds for _, part in parts)
        bounds = ", ".join(f"{name} {part.seconds / whole:.0%} {part.bound}" for name, part in parts[:2])
        table.add_row(time.stage, str(time.steps), *spans, rate, f"{days([time]):.1f}", bounds)
    console.print(table)
    whole = days(times)
    console.print(f"All of it: {whole:.1f} days, {whole * 24 * machine.chips:,.0f} chip-hours.")


if __name__ == "__main__":
    guarded(main)
