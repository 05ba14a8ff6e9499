"""The curves of one stage: a few that say how it went, and all others behind a fold."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from cascade_jax.metrics import step_seconds
from cascade_jax.report.charts import Points, key, line_chart, number
from cascade_jax.report.load import Stage

# metric -> (title, where the vertical axis starts or None); `metric/domain` lines join the chart of their metric.
MAIN: Mapping[str, tuple[str, float | None]] = {
    "reward": ("Reward", 0.0),
    "nll": ("Loss, nats per token", None),
    "reverse_kl": ("Reverse KL to teacher", 0.0),
    "entropy": ("Entropy, nats per token", 0.0),
    "sampler_gap_kl": ("Sampler gap, KL", 0.0),
    "response_length": ("Sample length, tokens", 0.0),
    "groups_kept": ("Groups with signal", 0.0),
    "truncated": ("Samples cut off, share", 0.0),
}


def curves(stage: Stage) -> str:
    """A grid of charts; a sentence where no step is logged yet."""
    if not stage.metrics:
        return '<p class="soft">No step is logged yet.</p>'
    groups: dict[str, list[str]] = {}  # metric -> its own name and `metric/domain`
    for name in dict.fromkeys(name for line in stage.metrics for name in line["metrics"]):
        groups.setdefault(name.split("/")[0], []).append(name)
    main = [_figure(title, _series(stage, groups[name]), low) for name, (title, low) in MAIN.items() if name in groups]
    main.append(_figure("Time of a step, seconds", {"step": _points(stage, step_seconds)}, 0.0))
    rest = [_figure(name, _series(stage, groups[name]), None) for name in sorted(groups) if name not in MAIN]
    text = f'<div class="grid">{"".join(main)}</div>'
    if any(rest):
        text += f'<details><summary>All other curves</summary><div class="grid">{"".join(rest)}</div></details>'
    return text


def _series(stage: Stage, names: list[str]) -> dict[str, Points]:
    """One curve per domain and one for all; of a single domain just one."""
    shown = names[:1] if len(names) == 2 else names
    return {name.split("/", 1)[-1]: _points(stage, lambda line, name=name: line["metrics"].get(name)) for name in shown}


def _points(stage: Stage, value: Callable[[Mapping[str, Any]], float | None]) -> Points:
    return [(line["step"], value(line)) for line in stage.metrics]


def _figure(title: str, series: Mapping[str, Points], low: float | None) -> str:
    known = [y for points in series.values() for _, y in points if y is not None]
    if not known:
        return ""
    first = [y for _, y in next(iter(series.values())) if y is not None]
    span = f"<span>{number(first[0])} → {number(first[-1])}</span>" if first else ""
    names = key(list(series)) if len(series) > 1 else ""
    return f"<figure><figcaption>{escape(title)}{span}</figcaption>{names}{line_chart(series, low=low)}</figure>"
