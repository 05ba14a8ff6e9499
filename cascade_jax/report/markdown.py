"""The same in Markdown, for a terminal, an issue or a diff."""

from cascade_jax.report.charts import number
from cascade_jax.report.load import Run, Stage
from cascade_jax.report.scores import domains, gain, headline, mean_points, recoveries

LAST = 10  # steps that the last value of a metric is the mean of


def markdown(run: Run) -> str:
    """Title, result, score matrix, what was lost and won back, teachers, metrics, time."""
    split = run.split()
    parts = [f"# {run.name}", headline(run, split)]
    if any(stage.evaluation for stage in run.stages):
        parts += [f"## Scores on the {split} rows (%)", _matrix(run, split)]
        parts.append(
            "In brackets: points against the checkpoint that the stage started from. Bold: what it trained on."
        )
    for r in recoveries(run, split):
        text = f"Lost in the cascade before {r.stage}: {r.lost_points:.1f} points"
        text += (
            f" ({', '.join(f'{d} {p:.1f} since {r.best[d][0]}' for d, p in r.dropped.items())})." if r.dropped else "."
        )
        if r.won and r.lost_points > 0:
            text += f" Won back by {r.stage}: {r.won_points:.1f} points ({100 * r.won_points / r.lost_points:.0f} %)."
        parts.append(text)
    for stage in run.stages:
        if stage.teachers:
            rows = [[domain, t.stage, t.reason] for domain, t in stage.teachers.items()]
            parts += [f"## Teachers of {stage.name}", _table(["domain", "teacher", "because"], rows)]
    for stage in run.stages:
        parts += [f"**{stage.name}**: {note['text']}" for note in stage.notes]
    trained = [stage for stage in run.stages if stage.metrics]
    if trained:
        parts += ["## Stages", _stages(trained)]
    if run.versions:
        parts += ["## Versions", ", ".join(f"{name} {value}" for name, value in run.versions.items())]
    return "\n\n".join(parts) + "\n"


def _matrix(run: Run, split: str) -> str:
    columns = domains(run)
    rows = []
    for stage in run.stages:
        if stage.evaluation.get(split):
            cells = [_cell(run, stage, domain, split) for domain in columns]
            rows.append([stage.name, *cells, f"{mean_points(stage, split):.1f}"])
    return _table(["stage", *columns, "mean"], rows)


def _cell(run: Run, stage: Stage, domain: str, split: str) -> str:
    score = stage.evaluation[split].get(domain)
    if score is None:
        return ""
    change = gain(run, stage, domain, split)
    text = f"{100 * score.score:.1f}" + ("" if change is None else f" ({change:+.1f})")
    return f"**{text}**" if domain in stage.domains else text


def _stages(stages: list[Stage]) -> str:
    names = ["reward", "nll", "reverse_kl", "entropy", "sampler_gap_kl", "response_length"]
    names = [name for name in names if any(name in line["metrics"] for stage in stages for line in stage.metrics)]
    rows = []
    for stage in stages:
        cells = []
        for name in names:
            values = [line["metrics"].get(name) for line in stage.metrics]
            known = [value for value in values if value is not None]
            ends = known[:LAST], known[-LAST:]
            cells.append(" → ".join(number(sum(end) / len(end)) for end in ends) if known else "")
        steps = f"{len(stage.metrics)}/{stage.steps}"
        rows.append([stage.name, stage.kind, stage.parent, stage.status, steps, f"{stage.seconds:.0f}", *cells])
    head = ["stage", "kind", "from", "status", "steps", "seconds", *names]
    return _table(head, rows) + f"\n\nMetrics: the mean of the first {LAST} steps → the mean of the last {LAST}."


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
