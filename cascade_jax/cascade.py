"""The stage runner: a graph of stages with parents and teachers, from first step to report, resumable anywhere."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from cascade_jax import graph
from cascade_jax import manifest as manifests
from cascade_jax.checkpoint import is_hugging_face, latest_step, load_model, restore_state, save_model
from cascade_jax.config import CascadeConfig, ConfigError, to_dict
from cascade_jax.domains import with_judge
from cascade_jax.evaluation import evaluate
from cascade_jax.export import export_stage
from cascade_jax.manifest import Manifest, StageRecord
from cascade_jax.mesh import on_all, use
from cascade_jax.metrics import truncate_lines, write_tensorboard
from cascade_jax.model import apply, lora
from cascade_jax.offload import to_host
from cascade_jax.optimizer import make_optimizer
from cascade_jax.processes import any_of, is_first, of_first
from cascade_jax.report import write_report
from cascade_jax.rollout.engine import Engine, LocalEngine
from cascade_jax.seeding import derive
from cascade_jax.stages import STAGES
from cascade_jax.stages.context import Context, Event, Stopped, Unjudged
from cascade_jax.types import Params, TrainState
from cascade_jax.workbench import Workbench, prepare, versions
from cascade_jax.workdir import claimed
from pallas_kernels.dispatch import preferring


def run_cascade(
    config: CascadeConfig,
    workdir: Path | str,
    *,
    engine: Engine | None = None,
    on_event: Callable[[Event], None] | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Run, or go on with, a cascade in `workdir` and return its manifest.

    Finished stages are skipped and a broken one goes on from its last checkpoint, with the bits of an unbroken run.
    `stop_asked` is polled at every step: once it is True the run is saved and returns with the status "stopped".
    ConfigError, FileNotFoundError or ValueError before any step where config, files or workdir do not fit.
    """
    workdir = Path(workdir)
    graph.check(config)
    with claimed(workdir, config), use(config.mesh), preferring(config.kernels.named):
        bench = _prepared(config, workdir)
        if is_first():
            manifests.write_json(workdir / "config.json", to_dict(config))
            manifests.write_json(workdir / "versions.json", versions())
        with with_judge(bench.domains, config.judge) as domains:
            bench = dataclasses.replace(bench, domains=domains)
            engine = engine or LocalEngine(
                bench.model, bench.params, stop_ids=bench.chat.stop_ids, buckets=config.buckets
            )
            emit = on_event if on_event and is_first() else lambda event: None
            run = _Run(config, workdir, bench, engine, emit, lambda: any_of(stop_asked()))
            return _all_stages(run, of_first(run.manifest) or manifests.fresh(config))


@dataclass(frozen=True)
class _Run:
    config: CascadeConfig
    workdir: Path
    bench: Workbench
    engine: Engine
    emit: Callable[[Event], None]
    stop_asked: Callable[[], bool]

    def directory(self, stage: str) -> Path:
        return self.workdir / "stages" / stage

    def final(self, stage: str) -> Path:
        """Where the finished model of a stage lies."""
        return self.directory(stage) / "checkpoints" / "final"

    def weights(self, stage: str) -> Params:
        """Fresh buffers every time, since an update takes its state's buffers over."""
        if stage == graph.INIT:
            return jax.tree.map(jnp.copy, self.bench.params)
        return load_model(self.final(stage))[1]

    def manifest(self) -> Manifest | None:
        return manifests.read(self.workdir / "manifest.json")

    def frozen_weights(self, stage: str) -> Params:
        """Those of a teacher or a reference, as layers read them, in the host's memory until they score."""
        return to_host(apply.cast(self.bench.model, self.weights(stage)))

    def save(self, manifest: Manifest) -> Manifest:
        if is_first():
            manifests.write(self.workdir / "manifest.json", manifest)
        return manifest


def _all_stages(run: _Run, manifest: Manifest) -> Manifest:
    manifest = run.save(dataclasses.replace(manifest, status="running"))
    run.emit(Event("run", "", {"workdir": str(run.workdir), "order": run.config.order}))
    try:
        if run.config.checkpoint and not manifest.initial:
            run.engine.load(run.bench.params, version=0)
            manifest = run.save(dataclasses.replace(manifest, initial=_evaluate(run, graph.INIT)))
        for name in run.config.order:
            if manifest.stages[name].status != "finished":
                manifest = _one_stage(run, manifest, name)
                if is_first():
                    manifests.write_json(run.workdir / "versions.json", versions())  # the kernels are known now
                    write_report(run.workdir)
    except Stopped:
        manifest = run.save(dataclasses.replace(of_first(run.manifest), status="stopped"))
    except Unjudged:
        write_report(run.workdir) if is_first() else None
        raise
    else:
        manifest = run.save(dataclasses.replace(manifest, status="finished"))
    if is_first():
        write_tensorboard(run.workdir)
        run.emit(Event("finished", "", {"status": manifest.status, "report": str(write_report(run.workdir))}))
    return manifest


def _one_stage(run: _Run, manifest: Manifest, name: str) -> Manifest:
    """Train, keep the final model, evaluate every domain, and only then call the stage finished."""
    stage, record = run.config.stages[name], manifest.stages[name]
    begun = time.perf_counter() - record.seconds
    teachers = manifests.choose_teachers(run.config, manifest, name)
    manifest = run.save(manifest.with_stage(name, status="running", teachers=teachers))
    state, context = _resume(run, record, name, teachers)
    about = {"kind": stage.kind, "parent": record.parent, "step": int(state.step), "steps": stage.steps}
    run.emit(Event("stage", name, about))
    try:
        state = STAGES[stage.kind](stage, state, context)
        params = lora.merge(state.params)
        save_model(run.final(name), run.bench.model, params, tokenizer=run.bench.chat.tokenizer.path)
        if stage.export_hf:
            _export(run, record, name, state.params)
        run.engine.load(params, version=stage.steps)
        results = _evaluate(run, name)
    except Stopped:
        run.save(manifest.with_stage(name, seconds=time.perf_counter() - begun))
        raise
    manifest = manifest.with_stage(name, status="finished", evaluation=results, seconds=time.perf_counter() - begun)
    run.save(manifest)
    for step in run.final(name).parent.iterdir() if is_first() else ():
        if step.name.isdigit():  # the optimizer's moments are of no use any more
            shutil.rmtree(step)
    return manifest


def _export(run: _Run, record: StageRecord, name: str, params: Params) -> None:
    checkpoint = Path(run.config.checkpoint)
    source = checkpoint if run.config.checkpoint and is_hugging_face(checkpoint) else None
    parent = run.directory(record.parent) / "hf"
    base = source if record.parent == graph.INIT else parent if of_first(parent.exists) else None
    refused = export_stage(run.directory(name), run.bench, params, source=source, base=base)
    if refused:
        run.emit(Event("note", name, {"text": refused}))


def _resume(run: _Run, record: StageRecord, name: str, teachers: dict[str, Any]) -> tuple[TrainState, Context]:
    """The stage's state, from its last checkpoint or from its parent, with its logs cut back to that step."""
    stage, directory = run.config.stages[name], run.directory(name)
    of_first(lambda: directory.mkdir(parents=True, exist_ok=True))
    params = run.weights(record.parent)
    if stage.lora.rank > 0:
        params = apply.placed(run.bench.model, lora.add(params, stage.lora, seed=derive(run.config.seed, name, "lora")))
    frozen = lora.frozen(stage.lora)
    optimizer = make_optimizer(stage.optimizer, total_steps=stage.steps, frozen=frozen)
    state, position = on_all(TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))), None
    step = latest_step(directory / "checkpoints")
    if step is not None:
        state, position = restore_state(directory / "checkpoints", step, state, frozen=frozen)
    for log in ("metrics.jsonl", "samples.jsonl", "notes.jsonl") if is_first() else ():
        truncate_lines(directory / log, int(state.step))
    if stage.optimizer.offload:
        state = dataclasses.replace(state, optimizer_state=to_host(state.optimizer_state))
    by_stage = {choice["stage"]: run.frozen_weights(choice["stage"]) for choice in teachers.values()}
    context = Context(
        name=name,
        stage=stage,
        model=run.bench.model,
        chat=run.bench.chat,
        engine=run.engine,
        domains=run.bench.domains,
        longest_prompt=max(run.config.buckets),
        seed=run.config.seed,
        optimizer=optimizer,
        frozen=frozen,
        directory=directory,
        position=position,
        emit=run.emit,
        stop_asked=run.stop_asked,
        teachers={domain: by_stage[choice["stage"]] for domain, choice in teachers.items()},
        reference=run.frozen_weights(record.parent) if stage.kind == "rl" and stage.rl.kl_coef > 0 else None,
    )
    return state, context


def _evaluate(run: _Run, name: str) -> dict[str, Any]:
    """split -> domain -> result, of the weights that the engine holds; also written to the stage's eval.json."""

    def check() -> None:
        if run.stop_asked():
            raise Stopped

    run.emit(Event("evaluation", name, {}))
    results, examples = {}, {}
    for split in ("validation", "test"):
        scores, examples[split] = evaluate(
            run.engine,
            run.bench.chat,
            run.bench.domains,
            config=run.config.evaluation,
            longest_prompt=max(run.config.buckets),
            split=split,
            seed=derive(run.config.seed, "evaluation"),
            check=check,
            note=lambda text: run.emit(Event("note", name, {"text": text})),
        )
        if scores:
            results[split] = {domain: dataclasses.asdict(score) for domain, score in scores.items()}
    if is_first():
        run.directory(name).mkdir(parents=True, exist_ok=True)
        manifests.write_json(run.directory(name) / "eval.json", {"results": results, "samples": examples})
    run.emit(Event("evaluation", name, {"results": results}))
    return results


def _prepared(config: CascadeConfig, workdir: Path) -> Workbench:
    try:
        return prepare(config, workdir)
    except (ValueError, OSError) as error:  # what is at fault before the first step is the user's to mend
        raise ConfigError(str(error)) from error
