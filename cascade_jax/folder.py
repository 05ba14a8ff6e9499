"""A folder that is replaced whole: written beside its place, renamed when it is complete; and which may be replaced."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """An empty folder to fill; on leaving it takes the place of `path`, after an error it is removed.

    Until the renaming an older folder at `path` stays whole. What a killed process left beside it is removed, or put
    back where it was killed between the two renames, by the next call.
    """
    path = path.resolve()  # of a link, what it points to is replaced
    fresh, old = (path.with_name(f".{path.name}.{word}") for word in ("incomplete", "old"))
    if old.exists() and not path.exists():
        old.rename(path)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def is_checkpoint(folder: Path) -> bool:
    """Whether it is ours to replace: an empty folder, or one with a config.json and weights that is not a run's."""
    if not folder.is_dir() or (folder / "manifest.json").exists():
        return False
    weights = (folder / "params").is_dir() or any(folder.glob("*.safetensors"))
    return not any(folder.iterdir()) or ((folder / "config.json").exists() and weights)


def check_apart(target: Path, source: Path) -> None:
    """FileExistsError where writing to the one would replace the other."""
    if target.resolve() in (source.resolve(), *source.resolve().parents):
        raise FileExistsError(f"{target} is or holds the source {source}; give another folder to write to.")
