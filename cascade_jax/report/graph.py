"""The cascade as a drawing: stages from left to right, side branches a row lower, teachers as dashed arcs."""

from html import escape

from cascade_jax.report.load import Run, Stage

BOX, GAP, ROW = 112, 36, 44  # width of a box, space between two, height of a box
LOWER = ROW + 24  # how far down side branches stand


def draw(run: Run) -> str:
    """SVG text; empty for a run without stages."""
    if not run.stages:
        return ""
    x = {stage.name: index * (BOX + GAP) for index, stage in enumerate(run.stages)}
    lessons = {(t.stage, stage.name) for stage in run.stages for t in stage.teachers.values() if t.stage in x}
    arch = {(a, b): 24 + 0.12 * (x[b] - x[a]) for a, b in sorted(lessons)}
    top = 4 + 0.75 * max(arch.values(), default=0)  # a Bezier curve rises to 3/4 of its control points
    y = {stage.name: top + (LOWER if stage.side_branch else 0) for stage in run.stages}
    width, height = len(run.stages) * (BOX + GAP) - GAP, max(y.values()) + ROW + 12
    parts = [f'<svg class="graph" viewBox="-2 0 {width + 4} {height:.0f}" style="max-width:{width}px" role="img">']
    for stage in run.stages:
        if stage.parent in x:
            parts.append(_arrow(x[stage.parent], y[stage.parent], x[stage.name], y[stage.name]))
    for (teacher, student), rise in arch.items():
        x1, x2, above = x[teacher] + BOX / 2, x[student] + BOX / 2, top - rise
        curve = f"M{x1:.0f} {y[teacher]:.0f}C{x1:.0f} {above:.0f} {x2:.0f} {above:.0f} {x2:.0f} {y[student]:.0f}"
        tip = f"{escape(teacher)} teaches {escape(student)}"
        parts.append(f'<path class="teaches" d="{curve}"><title>{tip}</title></path>')
    parts += [_box(stage, x[stage.name], y[stage.name]) for stage in run.stages]
    return "".join(parts) + "</svg>"


def _box(stage: Stage, x: float, y: float) -> str:
    detail = "initial weights" if stage.kind == "init" else f"{stage.kind}, {stage.steps} steps"
    return (
        f'<g class="box {escape(stage.status)}"><rect x="{x}" y="{y:.0f}" width="{BOX}" height="{ROW}" rx="7"/>'
        f'<text class="name" x="{x + BOX / 2}" y="{y + 19:.0f}">{escape(stage.name)}</text>'
        f'<text class="kind" x="{x + BOX / 2}" y="{y + 34:.0f}">{escape(detail)}</text>'
        f"<title>{escape(stage.name)}: {escape(stage.status)}</title></g>"
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    start, end = x1 + BOX, x2 - 1
    if y1 == y2 and x2 - x1 <= BOX + GAP:  # neighbours
        y = y1 + ROW / 2
        path, tip = f"M{start} {y:.0f}H{end - 5}", y
    elif y1 == y2:  # below those between
        y = y1 + ROW
        path, tip = f"M{x1 + BOX / 2} {y:.0f}v9H{x2 - GAP / 2}V{y1 + ROW / 2:.0f}H{end - 5}", y1 + ROW / 2
    else:
        y = y2 + ROW / 2
        path, tip = f"M{start} {y1 + ROW / 2:.0f}h{GAP / 2}V{y:.0f}H{end - 5}", y
    return f'<path class="leads" d="{path}"/><path class="tip" d="M{end} {tip:.0f}l-6 -3.5v7z"/>'
