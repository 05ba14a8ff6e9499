"""What a person sees while a run goes on: one live line for the stage, and a table of scores after each."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from cascade_jax.stages.context import Event

SHOWN = ("reward", "reverse_kl", "loss", "entropy", "sampler_gap_kl")


class Progress:
    """An `on_event` for run_cascade. Without a terminal it prints a line every ten seconds instead of a live bar."""

    def __init__(self) -> None:
        self.console = Console()
        self.bars = Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.scores: dict[str, dict[str, float | None]] = {}
        self.printed = 0.0
        self.task: Any = None

    def __enter__(self) -> "Progress":
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        show = {"stage": self._stage, "step": self._step, "evaluation": self._evaluation, "note": self._note}.get(
            event.kind
        )
        if show is not None:
            show(event)

    def _stage(self, event: Event) -> None:
        kind, parent = event.data["kind"], event.data["parent"]
        where = f", from step {event.data['step']}" if event.data["step"] else ""
        self.console.print(
            f"[bold]{event.stage}[/bold] ({kind}, {event.data['steps']} steps on top of {parent}{where})"
        )
        if self.task is not None:
            self.bars.remove_task(self.task)
        self.task = self.bars.add_task(event.stage, total=event.data["steps"], completed=event.data["step"], numbers="")

    def _step(self, event: Event) -> None:
        metrics = event.data["metrics"]
        numbers = "  ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics)
        self.bars.update(self.task, completed=event.data["step"], numbers=numbers)
        late = time.monotonic() - self.printed > 10 or event.data["step"] == event.data["steps"]
        if not self.console.is_terminal and late:
            self.console.print(f"  {event.stage} {event.data['step']}/{event.data['steps']}  {numbers}", soft_wrap=True)
            self.printed = time.monotonic()

    def _note(self, event: Event) -> None:
        self.console.print(f"[yellow]{event.stage}[/yellow]: {escape(event.data['text'])}", soft_wrap=True)

    def _evaluation(self, event: Event) -> None:
        if "results" not in event.data:
            self.bars.update(self.task, numbers="scoring every domain") if self.task is not None else None
            return
        results = event.data["results"]
        split = "test" if "test" in results else "validation"
        self.scores[event.stage] = {name: result["score"] for name, result in results[split].items()}
        table = Table(title=f"held-out scores, % ({split} rows)", title_justify="left")
        table.add_column("after")
        for domain in results[split]:
            table.add_column(domain, justify="right")
        for stage, scores in self.scores.items():
            table.add_row(stage, *("-" if score is None else f"{100 * score:.1f}" for score in scores.values()))
        self.console.print(table)
