"""Line charts as SVG text. Their colours, s0 to s5, are classes of page.css and follow the light and the dark page."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float | None]]  # (x, y); None is a gap

WIDTH, HEIGHT = 240, 125
LEFT, RIGHT, TOP, BOTTOM = 36, 8, 8, 20
COLOURS = 6
SHOWN = 240  # points at most; more are averaged


def line_chart(series: Mapping[str, Points], *, unit: str = "", low: float | None = None) -> str:
    """Curves over training steps: values thin, their moving mean on top. `low` pins the foot of the vertical axis."""
    series = {name: _thin(points) for name, points in series.items()}
    xs = [x for points in series.values() for x, y in points if y is not None]
    ys = [y for points in series.values() for _, y in points if y is not None]
    if not ys:
        return ""
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    y_ticks = ticks(min(ys) if low is None else min(low, min(ys)), max(ys))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (y_high - y) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for tick in y_ticks:
        y = place(x_low, tick)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{number(tick)}</text>')
    for x, anchor in ((x_low, "start"), (x_high, "end")):
        across = place(x, y_low)[0]
        parts.append(f'<text class="tick" x="{across:.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}">{number(x)}</text>')
    for index, (name, points) in enumerate(series.items()):
        colour = f"s{index % COLOURS}"
        smooth = moving_mean(points, max(1, len(points) // 12))
        if len(points) > 12:
            parts.append(f'<path class="raw {colour}" d="{_path(points, place)}"/>')
            parts.append(f'<path class="line {colour}" d="{_path(smooth, place)}"/>')
        else:
            parts.append(f'<path class="line {colour}" d="{_path(points, place)}"/>')
        label = f"{name}, " if len(series) > 1 else ""
        for x, y in points:
            if y is not None:
                across, down = place(x, y)
                tip = escape(f"{label}step {number(x)}: {number(y)}{unit}")
                spot = f'cx="{across:.1f}" cy="{down:.1f}" r="4"'
                parts.append(f'<circle class="hit {colour}" {spot}><title>{tip}</title></circle>')
    return "".join(parts) + "</svg>"


def stage_chart(stages: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """Percentages after each stage: how far the curves fall in the cascade, and how far they come back."""
    width, height, left, right, top, bottom = 300, 290, 30, 10, 8, 44
    across = [left + 10 + i * (width - left - right - 20) / max(1, len(stages) - 1) for i in range(len(stages))]
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img">']

    def down(percent: float) -> float:
        return top + (100 - percent) / 100 * (height - top - bottom)

    for percent in range(0, 101, 25):
        y = down(percent)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 3:.1f}" text-anchor="end">{percent}</text>')
    for x, stage in zip(across, stages, strict=True):
        y = height - bottom + 16
        crowded = len(stages) > 5
        set_as = f'text-anchor="end" transform="rotate(-25 {x:.1f} {y})"' if crowded else 'text-anchor="middle"'
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" {set_as}>{escape(stage)}</text>')
    for index, (name, values) in enumerate(series.items()):
        points = [(x, None if v is None else down(v)) for x, v in zip(across, values, strict=True)]
        parts.append(f'<path class="line s{index % COLOURS}" d="{_path(points, lambda x, y: (x, y))}"/>')
        for (x, y), value, stage in zip(points, values, stages, strict=True):
            if y is not None:
                tip = escape(f"{name} after {stage}: {value:.1f} %")
                spot = f'cx="{x:.1f}" cy="{y:.1f}" r="3.2"'
                parts.append(f'<circle class="dot s{index % COLOURS}" {spot}><title>{tip}</title></circle>')
    return "".join(parts) + "</svg>"


def key(names: Sequence[str]) -> str:
    """Which colour is which."""
    items = "".join(f'<span><i class="s{i % COLOURS}"></i>{escape(name)}</span>' for i, name in enumerate(names))
    return f'<div class="key">{items}</div>'


def ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers that enclose low..high."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / 3
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def number(value: float) -> str:
    """Short enough for an axis: 0.25, 1.5e-06, 12k."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:.4g}k"
    return f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.4g}"


def moving_mean(points: Points, width: int) -> list[tuple[float, float | None]]:
    """The mean of each value and the up to width - 1 before it."""
    result: list[tuple[float, float | None]] = []
    for i, (x, y) in enumerate(points):
        window = [v for _, v in points[max(0, i + 1 - width) : i + 1] if v is not None]
        result.append((x, None if y is None else sum(window) / len(window)))
    return result


def _thin(points: Points) -> list[tuple[float, float | None]]:
    width = math.ceil(len(points) / SHOWN)
    if width <= 1:
        return list(points)
    result: list[tuple[float, float | None]] = []
    for start in range(0, len(points), width):
        known = [y for _, y in points[start : start + width] if y is not None]
        result.append((points[min(start + width, len(points)) - 1][0], sum(known) / len(known) if known else None))
    return result


def _path(points: Points, place: Callable[[float, float], tuple[float, float]]) -> str:
    words, pen_down = [], False
    for x, y in points:
        if y is not None:
            across, down = place(x, y)
            words.append(f"{'L' if pen_down else 'M'}{across:.1f} {down:.1f}")
        pen_down = y is not None
    return "".join(words)
