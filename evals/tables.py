"""Scores as Markdown, which reads in a terminal too."""

from collections.abc import Mapping, Sequence
from typing import Any

from evals.benchmarks.benchmark import Benchmark

HEAD = (
    "benchmark",
    "rows x k",
    "avg@k % [95 %]",
    "s.e. rows, runs",
    "pass@k %",
    "majority@k %",
    "no answer",
    "cut off",
    "no verdict",
    "tokens",
)


def scores(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line for each benchmark, and one for each of its parts; what is not to be trusted is told below."""
    lines = []
    for s in summaries:
        k = s["samples"]
        lines.append(
            (
                s["benchmark"],
                f"{s['rows']} x {k}",
                interval(s["avg@k"]),
                f"{_points(s['avg@k']['row_error'])}, {_points(s['avg@k']['run_error'])}",
                f"{_points(s['pass@k'][str(k)]['value'])} (k = {k})",
                interval(s["majority@k"]) if s["majority@k"] else "",
                str(s["no_answer"]),
                str(s["truncated"]),
                str(s["no_verdict"]),
                f"{s['tokens']['mean']:.0f}",
            )
        )
        for name, part in (s["by"] or {"parts": {}})["parts"].items():
            errors = f"{_points(part['row_error'])}, {_points(part['run_error'])}"
            lines.append((f"· {name}", f"{part['rows']} x {k}", interval(part), errors, *[""] * 6))
    return "\n\n".join([table(HEAD, lines), *map(_warning, [s for s in summaries if s["no_verdict"]])]) + "\n"


def _warning(s: Mapping[str, Any]) -> str:
    reasons = "; ".join(f"{count} x {reason}" for reason, count in s["no_verdict_reasons"].items())
    loud = "**Too many to trust the score.** " if s["alarm"] else ""
    without = f"{s['no_verdict']} of {s['drawn']} samples have no verdict and are in no mean"
    return f"{s['benchmark']}: {loud}{without}: {reasons}."


def comparisons(found: Sequence[Mapping[str, Any]]) -> str:
    """The second checkpoint against the first, a line for each benchmark."""
    head = (
        "benchmark",
        "rows",
        "first %",
        "second %",
        "difference [95 %]",
        "better, worse, equal",
        "p permutation, sign",
    )
    lines = [
        (
            c["benchmark"],
            str(c["difference"]["rows"]),
            interval(c["avg@k"][0]),
            interval(c["avg@k"][1]),
            interval(c["difference"], sign="+"),
            f"{c['better']}, {c['worse']}, {c['equal']}",
            f"{c['permutation_p']:.3g}, {c['sign_p']:.3g}",
        )
        for c in found
    ]
    names = "\n\n".join(dict.fromkeys(f"first: {c['first']}, second: {c['second']}" for c in found))
    differing = [
        f"{c['benchmark']}: the two differ in {', '.join(c['settings_differ'])}, not in the checkpoint alone."
        for c in found
        if c["settings_differ"]
    ]
    return "\n\n".join([table(head, lines), names, *differing]) + "\n"


def settings(benchmarks: Mapping[str, Benchmark], elsewhere: Mapping[str, str]) -> str:
    """What there is, with the settings that are its defaults, and where its data come from."""
    head = ("name", "what", "k", "T", "top-p", "tokens", "thinking", "judge", "data", "note")
    lines = [
        (
            name,
            b.title,
            str(b.samples),
            f"{b.sampling.temperature:g}",
            f"{b.sampling.top_p:g}",
            f"{b.sampling.max_tokens:,}",
            "yes" if b.thinking else "no",
            b.paper_judge,
            b.source,
            b.note,
        )
        for name, b in benchmarks.items()
    ]
    rest = "\n".join(f"- {name} {why}." for name, why in elsewhere.items())
    return f"{table(head, lines)}\n\nNot run here:\n\n{rest}\n"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown with padded columns."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in [head, *lines]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    shown = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    shown.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in shown)


def interval(estimate: Mapping[str, Any], *, sign: str = "") -> str:
    """A value with its interval, such as 12.5 [3.5, 36.0]."""
    if estimate["value"] is None:
        return "unknown"
    return f"{estimate['value']:{sign}.1f} [{estimate['low']:{sign}.1f}, {estimate['high']:{sign}.1f}]"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
