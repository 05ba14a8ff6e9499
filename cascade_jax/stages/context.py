"""What a stage is given besides its config and state, and what it must do at the end of every step."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optax

from cascade_jax.checkpoint import save_state
from cascade_jax.config import ModelConfig, StageConfig
from cascade_jax.data.chat import Chat
from cascade_jax.domains import Domain
from cascade_jax.metrics import MetricsLog, append_lines
from cascade_jax.processes import is_first
from cascade_jax.rollout.engine import Engine
from cascade_jax.types import Group, Params, Sample, Segment, TrainState, Weighted


class Stopped(Exception):
    """A stop was asked for (SIGTERM, Ctrl-C) and everything up to here is saved."""


class Unjudged(Exception):
    """Step after step too many samples had no verdict: something on our side is broken, and everything is saved."""


@dataclass(frozen=True)
class Event:
    """What `on_event` hears: kind is run, stage, step, evaluation, note or finished."""

    kind: str
    stage: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """One stage on the workbench. `position`: the data position of its last checkpoint (None: a fresh start)."""

    name: str
    stage: StageConfig
    model: ModelConfig
    chat: Chat
    engine: Engine
    domains: Mapping[str, Domain]
    longest_prompt: int  # tokens; longer prompts are left out and counted
    seed: int
    optimizer: optax.GradientTransformation
    frozen: Callable[[str], bool] | None  # the weights, by path, that the stage must leave alone
    directory: Path
    position: dict[str, Any] | None
    emit: Callable[[Event], None]
    stop_asked: Callable[[], bool]
    teachers: Mapping[str, Params] = field(default_factory=dict)  # by domain
    reference: Params | None = None  # for the KL term
    timer: "StepTimer" = field(default_factory=lambda: StepTimer())
    alarms: int = 0  # steps in a row with too many samples without a verdict

    def steps(self, state: TrainState) -> Iterator[int]:
        """The steps that are left, counted from 0."""
        for step in range(int(state.step), self.stage.steps):
            self.timer.start()
            yield step

    def finish_step(
        self,
        state: TrainState,
        metrics: Mapping[str, Weighted],
        *,
        position: dict[str, Any],
        samples: list[dict[str, Any]],
    ) -> None:
        """Log the step, write a checkpoint when one is due, and stop here if that was asked for."""
        step = int(state.step)
        values = {name: float(value.mean) for name, value in metrics.items()}
        self.timer.mark("update")  # reading the metrics waited for the device
        if is_first():
            append_lines(self.directory / "samples.jsonl", [{"step": step, **sample} for sample in samples])
            MetricsLog(self.directory / "metrics.jsonl").append(step, values, time=self.timer.seconds())
        self.emit(Event("step", self.name, {"step": step, "steps": self.stage.steps, "metrics": values}))
        stop = self.stop_asked()
        if stop or step % self.stage.checkpoint_every == 0 or step == self.stage.steps:
            save_state(self.directory / "checkpoints", state, position, frozen=self.frozen)
        if stop:
            raise Stopped

    def note(self, step: int, text: str) -> None:
        """Tell the person who watches, and the report."""
        if is_first():
            append_lines(self.directory / "notes.jsonl", [{"step": step, "text": text}])
        self.emit(Event("note", self.name, {"step": step, "text": text}))

    def watch(self, share: float, step: int) -> None:
        """Alarm where more samples of a step than the stage allows, as a share, had no verdict.

        Unjudged after `alarm_steps` such steps in a row.
        """
        self.alarms = self.alarms + 1 if share > self.stage.alarm_share else 0
        if not self.alarms:
            return
        text = (
            f"step {step}: {100 * share:.0f} % of the samples had no verdict, more than alarm_share="
            f"{self.stage.alarm_share:g} allows"
        )
        self.note(step, f"{text}.")
        if self.alarms >= self.stage.alarm_steps:
            raise Unjudged(
                f"stage {self.name}, {text}, for {self.alarms} steps in a row; mend what judges its domains "
                f"({', '.join(self.stage.domains)}) and run again, it goes on from the last checkpoint."
            )


class StepTimer:
    """Seconds spent at each station of one step."""

    def start(self) -> None:
        self._begin = self._last = time.perf_counter()
        self._spans: dict[str, float] = {}

    def mark(self, station: str) -> None:
        """The time since the last mark went to `station`."""
        now = time.perf_counter()
        self._spans[station] = self._spans.get(station, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return {**self._spans, "step": self._last - self._begin}


def transcripts(chat: Chat, group: Group, rewards: np.ndarray, *, count: int) -> list[dict[str, Any]]:
    """The first `count` samples of a group as the report shows them; a NaN reward (no verdict) becomes null."""
    prompt = chat.tokenizer.decode(group.prompt.ids.tolist())
    return [
        {
            "domain": group.prompt.domain,
            "prompt": prompt,
            "reply": chat.tokenizer.decode(sample.ids.tolist()),
            "reward": None if np.isnan(reward) else float(reward),
            "stop_reason": sample.stop_reason,
            **({} if sample.verdict is None else _episode(chat, sample)),
        }
        for sample, reward in list(zip(group.samples, rewards, strict=True))[:count]
    ]


def _episode(chat: Chat, sample: Sample) -> dict[str, Any]:
    """`turns`: who spoke (assistant, environment, or context: all anew, where the chain of tokens broke) and what."""
    turns: list[tuple[str, str]] = []
    for segment in (Segment(np.zeros(0, np.int32), sample.ids, sample.logprobs, sample.mask), *sample.later):
        changes = np.flatnonzero(np.diff(segment.mask)) + 1
        parts = [("context", segment.prompt)]
        for ids, written in zip(np.split(segment.ids, changes), np.split(segment.mask, changes), strict=True):
            parts.append(("assistant" if written.all() else "environment", ids))
        turns += [(who, chat.tokenizer.decode(ids.tolist())) for who, ids in parts if len(ids)]
    unjudged = {} if sample.verdict.no_verdict is None else {"no_verdict": sample.verdict.no_verdict}
    return {"turns": turns, **unjudged}
