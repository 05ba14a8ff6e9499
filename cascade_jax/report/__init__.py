"""Run directory -> report.html (one page that opens from disk and loads nothing) and report.md."""

import os
from pathlib import Path

from cascade_jax.report.load import load
from cascade_jax.report.markdown import markdown
from cascade_jax.report.page import html


def write_report(run_dir: Path | str) -> Path:
    """Write both files, also of a run that is still going or was stopped; the path of report.html.

    FileNotFoundError where run_dir holds no manifest, ValueError where a log is broken.
    """
    run_dir = Path(run_dir)
    run = load(run_dir)
    _replace(run_dir / "report.md", markdown(run))
    return _replace(run_dir / "report.html", html(run))


def _replace(path: Path, text: str) -> Path:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
    return path
