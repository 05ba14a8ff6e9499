"""Tasks in folders of the Harbor format: instruction.md, task.toml, environment/, tests/test.sh, solution/solve.sh."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cascade_jax.types import Row

WORK = "app"  # where environment/ lies and commands start, from the root
_IMAGE_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "Containerfile")


class TaskError(ValueError):
    """The folder is no task, or one that a sandbox without an image cannot run."""


class File(NamedTuple):
    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class Task:
    """Files by path, as in the folder. Seconds are None where task.toml names none."""

    files: Mapping[str, File]
    agent_seconds: float | None
    verifier_seconds: float | None
    verifier_env: Mapping[str, str]

    def part(self, folder: str) -> dict[str, File]:
        """What lies in environment, tests or solution, by its path there."""
        return {path.partition("/")[2]: file for path, file in self.files.items() if path.startswith(f"{folder}/")}


def read_task(row: Row) -> Task:
    """The task of a row: the folder `task_path`, or `files` as they would stand in it. TaskError."""
    path, texts = row.fields.get("task_path"), row.fields.get("files")
    if path:
        files = dict(_files(Path(path)))
    else:
        files = {name: File(text.encode(), text.startswith("#!")) for name, text in (texts or {}).items()}
    if "tests/test.sh" not in files:
        raise TaskError(f"the task {path or row.id} has no tests/test.sh, so nothing tells whether it is done")
    try:
        settings = tomllib.loads(files["task.toml"].data.decode()) if "task.toml" in files else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"task.toml of the task {path or row.id} cannot be read: {error}") from None
    _refuse_images(str(path or row.id), files, _table(settings, "environment"), settings)
    agent, verifier = _table(settings, "agent"), _table(settings, "verifier")
    return Task(files, _seconds(agent), _seconds(verifier), _literal(_table(verifier, "env")))


def _files(folder: Path) -> Iterator[tuple[str, File]]:
    if not folder.is_dir():
        raise TaskError(f"there is no folder {folder}; task_path must be the folder of a Harbor task")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), File(path.read_bytes(), bool(path.stat().st_mode & 0o100))


def _refuse_images(name: str, files: Mapping[str, File], environment: Mapping[str, Any], settings: Any) -> None:
    needs = [f"environment/{file}" for file in _IMAGE_FILES if f"environment/{file}" in files]
    needs += [f"{key} in task.toml" for key in ("docker_image", "gpus", "mcp_servers") if environment.get(key)]
    needs += ["steps in task.toml"] if settings.get("steps") else []
    if needs:
        raise TaskError(
            f"the task {name} needs more than a sandbox gives ({needs[0]}); only tasks without an image run here, "
            "others by Harbor itself"
        )


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name, {})
    return found if isinstance(found, Mapping) else {}


def _seconds(table: Mapping[str, Any]) -> float | None:
    value = table.get("timeout_sec")
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _literal(env: Mapping[str, Any]) -> dict[str, str]:
    """Without what would be filled in from the environment of this process, which no sandbox sees."""
    return {name: value for name, value in env.items() if isinstance(value, str) and "${" not in value}
