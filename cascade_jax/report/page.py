"""The page: one HTML file that needs nothing but itself."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from cascade_jax.report import graph
from cascade_jax.report.charts import key, stage_chart
from cascade_jax.report.curves import curves
from cascade_jax.report.load import Run, Stage
from cascade_jax.report.scores import domains, gain, headline, interval, main_line, mean_points, points, recoveries

SAMPLES = 8  # shown per stage, half from its first logged steps and half from its last
NOTES = 5  # of each stage, its last ones
LONGEST = 4000  # characters of a prompt or a reply


def html(run: Run) -> str:
    """The whole document."""
    split = run.split()
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    body = [
        f"<h1>{escape(run.name)}</h1>",
        f'<p class="lead">{escape(headline(run, split))}</p>',
        '<nav><a href="#scores">Scores</a><a href="#stages">Stages</a><a href="#teachers">Teachers</a>'
        '<a href="#time">Time</a><a href="#settings">Settings</a></nav>',
        graph.draw(run),
        _cards(run, split),
        _scores(run, split),
        _stages(run),
        _teachers(run),
        _time(run),
        _settings(run),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def matrix(run: Run, split: str) -> str:
    """Stages by domains, in percent, with the points gained or lost against the parent."""
    columns = domains(run)
    rows = [
        "<tr><th></th>"
        + "".join(f"<th>{escape(domain)}</th>" for domain in columns)
        + "<th>mean</th></tr></thead><tbody>"
    ]
    for stage in run.stages:
        if stage.evaluation.get(split):
            origin = f"from {stage.parent}" if stage.parent else "initial weights"
            cells = "".join(_cell(run, stage, domain, split) for domain in columns)
            mean = f"<td><b>{mean_points(stage, split):.1f}</b></td>"
            rows.append(f"<tr><th>{escape(stage.name)}<span>{escape(origin)}</span></th>{cells}{mean}</tr>")
    return '<div class="scroll"><table class="matrix"><thead>' + "".join(rows) + "</tbody></table></div>"


def _cell(run: Run, stage: Stage, domain: str, split: str) -> str:
    score = stage.evaluation[split].get(domain)
    own = " own" if domain in stage.domains else ""
    if score is None:
        return f'<td class="none{own}">not scored</td>'
    change = gain(run, stage, domain, split)
    shade = "" if change is None or abs(change) < 0.05 else "up" if change > 0 else "down"
    note = "" if change is None else f"<span>{signed(change)}</span>"
    tip = escape(f"{domain} after {stage.name}: {interval(score)}")
    return f'<td class="{shade}{own}" title="{tip}"><b>{100 * score.score:.1f}</b>{note}</td>'


def signed(change: float) -> str:
    """+3.1, a true minus sign for losses, and ±0 in between."""
    return "±0" if abs(change) < 0.05 else f"{change:+.1f}".replace("-", "\N{MINUS SIGN}")


def _cards(run: Run, split: str) -> str:
    line = [stage for stage in main_line(run) if stage.evaluation.get(split)]
    cards = []
    if len(line) > 1:
        first, last = next((s for s in line if s.kind != "init"), line[0]), line[-1]
        cards.append((f"{mean_points(last, split):.1f} %", f"mean {split} score after {last.name}", ""))
        change = mean_points(last, split) - mean_points(first, split)
        cards.append((signed(change), f"points against {first.name}", "good" if change > 0 else "bad"))
    for r in recoveries(run, split):
        dropped = ", ".join(f"{d} {signed(-p)} since {r.best[d][0]}" for d, p in r.dropped.items())
        cards.append(
            (
                signed(-r.lost_points),
                f"lost in the cascade before {r.stage}: {dropped or 'nothing'}",
                "bad",
            )
        )
        if r.won and r.lost_points > 0:
            share = f"{signed(r.won_points)} ({100 * r.won_points / r.lost_points:.0f} %)"
            cards.append(
                (share, f"of these points won back by {r.stage} (MOPD)", "good" if r.won_points > 0 else "bad")
            )
    boxes = "".join(
        f'<div class="card"><b class="{c}">{escape(b)}</b><span>{escape(t)}</span></div>' for b, t, c in cards
    )
    return f'<div class="cards">{boxes}</div>' if cards else ""


def _scores(run: Run, split: str) -> str:
    if not any(stage.evaluation for stage in run.stages):
        return '<h2 id="scores">Scores</h2><p class="soft">No stage has been scored yet.</p>'
    other = "validation" if split == "test" else "test"
    parts = [
        f'<h2 id="scores">Scores on the {split} rows</h2>',
        '<p class="soft small">Percent of rows that passed, after each stage. Below it the change in points against '
        "the checkpoint that the stage started from. A frame marks what it trained on; hover for the interval.</p>",
        f'<div class="scores">{matrix(run, split)}{_course(run, split)}</div>',
    ]
    if any(stage.evaluation.get(other) for stage in run.stages):
        parts.append(f"<details><summary>The same on the {other} rows</summary>{matrix(run, other)}</details>")
    return "\n".join(parts)


def _course(run: Run, split: str) -> str:
    line = [stage for stage in main_line(run) if stage.evaluation.get(split)]
    if len(line) < 2:
        return ""
    series = {domain: [points(stage, domain, split) for stage in line] for domain in domains(run)}
    return f"<figure>{key(list(series))}{stage_chart([stage.name for stage in line], series)}</figure>"


def _stages(run: Run) -> str:
    parts = ['<h2 id="stages">Stages</h2>']
    for stage in run.stages:
        if stage.kind != "init":
            weights = ", ".join(
                f"{domain} \N{MULTIPLICATION SIGN} {weight:g}" for domain, weight in stage.domains.items()
            )
            branch = ", a side branch" if stage.side_branch else ""
            steps = f"{len(stage.metrics)} of {stage.steps} steps"
            facts = f"{stage.kind}, {steps}, from {stage.parent}{branch}; {weights}; {stage.status}"
            parts.append(f'<h3>{escape(stage.name)} <span class="soft small">{escape(facts)}</span></h3>')
            parts += [f'<p class="alarm">{escape(note["text"])}</p>' for note in stage.notes[-NOTES:]]
            parts.append(curves(stage))
            parts.append(_samples(stage))
    return "\n".join(parts)


def _samples(stage: Stage) -> str:
    if not stage.samples:
        return ""
    half = SAMPLES // 2
    shown = stage.samples if len(stage.samples) <= SAMPLES else stage.samples[:half] + stage.samples[-half:]
    return f"<details><summary>Samples</summary>{''.join(map(_sample, shown))}</details>"


def _sample(line: Mapping[str, Any]) -> str:
    reward = line.get("reward")
    verdict = "no reward" if reward is None else f"reward {reward:g}"
    shade = "" if reward is None else "pass" if reward > 0.5 else "fail"
    parts = [f"step {line['step']}", line.get("domain", ""), verdict, f"ended by {line.get('stop_reason', '?')}"]
    parts += [f"{name} {value}" for name, value in (line.get("components") or {}).items()]
    turns = line.get("turns") or [("", line.get("reply", ""))]
    texts = "".join(f"<pre{f' class={who}' if who else ''}>{escape(_short(text))}</pre>" for who, text in turns)
    return (
        f'<div class="sample {shade}"><div class="soft">{escape(" · ".join(parts))}</div>'
        f"<pre>{escape(_short(line.get('prompt', '')))}</pre>{texts}</div>"
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"


def _teachers(run: Run) -> str:
    parts = ['<h2 id="teachers">Teachers</h2>']
    for stage in run.stages:
        if not stage.teachers:
            continue
        names = list(dict.fromkeys(name for teacher in stage.teachers.values() for name in teacher.scores))
        head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
        rows = [f"<tr><th>{escape(stage.name)} learns</th><th>from</th><th>because</th>{head}</tr>"]
        for domain, teacher in stage.teachers.items():
            scores = "".join(_teacher_score(teacher.scores.get(name), name == teacher.stage) for name in names)
            words = f"<td>{escape(domain)}</td><td><b>{escape(teacher.stage)}</b></td><td>{escape(teacher.reason)}</td>"
            rows.append(f"<tr>{words}{scores}</tr>")
        parts.append(f'<div class="scroll"><table>{"".join(rows)}</table></div>')
    if len(parts) == 1:
        parts.append('<p class="soft">No stage has chosen its teachers yet.</p>')
    return "\n".join(parts)


def _teacher_score(score: float | None, chosen: bool) -> str:
    text = "" if score is None else f"{100 * score:.1f}"
    return f'<td class="n">{f"<b>{text}</b>" if chosen else text}</td>'


def _time(run: Run) -> str:
    stages = [stage for stage in run.stages if stage.metrics]
    stations = list(dict.fromkeys(name for stage in stages for line in stage.metrics for name in line["time"]))
    stations.sort(key=lambda name: name == "step")  # the sum comes last
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in stations)
    rows = [f'<tr><th>stage</th><th class="n">steps</th><th class="n">whole stage</th>{head}</tr>']
    for stage in stages:
        means = [sum(line["time"].get(name, 0.0) for line in stage.metrics) / len(stage.metrics) for name in stations]
        cells = "".join(f'<td class="n">{mean:.3g}</td>' if mean else "<td></td>" for mean in means)
        whole = f'<td class="n">{len(stage.metrics)}</td><td class="n">{stage.seconds:.0f}</td>'
        rows.append(f"<tr><td>{escape(stage.name)}</td>{whole}{cells}</tr>")
    note = '<p class="soft small">Seconds: of the whole stage, and the mean of a step at each of its stations.</p>'
    return f'<h2 id="time">Time</h2>{note}<div class="scroll"><table>{"".join(rows)}</table></div>'


def _settings(run: Run) -> str:
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in run.versions.items())
    config = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
    return (
        '<h2 id="settings">Settings</h2>'
        f"<details><summary>Configuration</summary><pre>{config}</pre></details>"
        f"<details><summary>Versions</summary><table>{rows}</table></details>"
    )
