"""The pass rates of a file of rows, batch by batch: a profile that was stopped goes on where it was."""

import argparse
import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cascade_jax.checkpoint import load_model
from cascade_jax.config import JudgeConfig, SamplingConfig
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.data.rows import to_record
from cascade_jax.domains import JUDGED, Domain, with_judge
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.profiling import profile
from cascade_jax.reward import VERIFIERS
from cascade_jax.rollout.engine import LocalEngine
from cascade_jax.seeding import derive
from cascade_jax.types import Row

# What decides the numbers: a profile goes on with the same of these alone.
SETTINGS = (
    "input",
    "problems",
    "samples",
    "temperature",
    "top_p",
    "max_tokens",
    "max_prompt",
    "thinking",
    "judge_model",
    "batch",
    "seed",
)


def run(given: argparse.Namespace, rows: Iterable[Row]) -> int:
    """Writes the rows with their pass rates to `given.output`, which is there when it is whole; how many there are.

    Until then they lie in OUTPUT.incomplete. FileExistsError, FileNotFoundError or ValueError for a mistake.
    """
    output = Path(given.output)
    if output.exists():
        raise FileExistsError(f"{output} exists already; remove it, or give another --output.")
    settings = {name: getattr(given, name) for name in SETTINGS} | {"checkpoint": str(given.checkpoint)}
    sampling = SamplingConfig(given.temperature, given.top_p, max_tokens=given.max_tokens)
    unfinished = _begun(output, settings)
    done = _whole_batches(unfinished, given.batch)
    engine, chat = _engine(given.checkpoint, given.max_prompt)
    domains: dict[str, Domain] = {}
    with contextlib.ExitStack() as judges:
        for number, batch in enumerate(_batches(rows, given.batch)):
            if number < done:
                continue
            for kind in {row.kind for row in batch} - set(domains):
                judge = JudgeConfig(given.judge, given.judge_model)
                domains |= judges.enter_context(with_judge({kind: _domain(kind, given)}, judge))
            found = profile(
                engine,
                chat,
                domains,
                batch,
                sampling,
                samples=given.samples,
                longest_prompt=given.max_prompt,
                seed=derive(given.seed, "profile", number),
            )
            with unfinished.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(_record(row, given), ensure_ascii=False) + "\n" for row in found)
    count = unfinished.read_bytes().count(b"\n")
    unfinished.replace(output)
    _settings_file(output).unlink()
    return count


def _record(row: Row, given: argparse.Namespace) -> dict[str, Any]:
    """The row as it was given: what comes from the side file stays there."""
    record = to_record(row)
    return {name: value for name, value in record.items() if name != "problem"} if given.problems else record


def _begun(output: Path, settings: dict[str, Any]) -> Path:
    """The unfinished file, empty or of an earlier start with the same settings."""
    unfinished, file = output.with_name(f"{output.name}.incomplete"), _settings_file(output)
    if unfinished.exists() and file.exists():
        before = json.loads(file.read_text())
        other = sorted(name for name in settings if before.get(name) != settings[name])
        if other:
            values = ", ".join(f"{name}={before.get(name)!r}" for name in other)
            raise ValueError(f"{unfinished} was begun with {values}; give the same again, or remove it.")
        return unfinished
    file.write_text(json.dumps(settings))
    unfinished.write_bytes(b"")
    return unfinished


def _settings_file(output: Path) -> Path:
    return output.with_name(f"{output.name}.settings.json")


def _whole_batches(path: Path, size: int) -> int:
    """How many batches are in the file, from which what a killed process left of another one is cut off."""
    lines = path.read_bytes().splitlines(keepends=True)
    whole = sum(line.endswith(b"\n") for line in lines) // size
    os.truncate(path, sum(len(line) for line in lines[: whole * size]))
    return whole


def _batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    stream = iter(rows)
    while batch := list(itertools.islice(stream, size)):
        yield batch


def _engine(checkpoint: Path, longest_prompt: int) -> tuple[LocalEngine, Chat]:
    model, params, tokenizer = load_model(checkpoint)
    if tokenizer is None:
        raise ValueError(f"{checkpoint} has no tokenizer; copy its tokenizer.json or tokenizer.model there.")
    chat = Chat(tokenizers.load(tokenizer))
    buckets = [2**n for n in range(5, (longest_prompt - 1).bit_length())] + [longest_prompt]
    return LocalEngine(model, params, stop_ids=chat.stop_ids, buckets=buckets), chat


def _domain(kind: str, given: argparse.Namespace) -> Domain:
    if kind in ENVIRONMENTS:
        return Domain(kind, {}, kind, given.thinking, verifier=None, environment=ENVIRONMENTS[kind]())
    if kind not in VERIFIERS:
        known = ", ".join(sorted([*VERIFIERS, *ENVIRONMENTS]))
        raise ValueError(f"rows of kind {kind} have no pass rate; kinds with one are {known}.")
    if kind in JUDGED and not given.judge:
        raise ValueError(f"rows of kind {kind} are graded by a judge; give its address with --judge.")
    return Domain(kind, {}, kind, given.thinking, VERIFIERS[kind]())
