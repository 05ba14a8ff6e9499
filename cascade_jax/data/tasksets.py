"""Rows out of the tasksets of the `verifiers` package (0.4): one for each task, which is found again by its place."""

from typing import Any

from cascade_jax.data.messages import parse_message
from cascade_jax.types import Row


def load_taskset(name: str) -> Any:
    """The taskset of an installed package. FileNotFoundError: the package, or verifiers itself, is not installed."""
    try:
        from verifiers.v1.utils import loaders
    except ModuleNotFoundError:
        raise FileNotFoundError(
            "tasksets come with the package verifiers, which is not installed; run `pip install -e '.[envs]'`."
        ) from None
    try:
        return loaders.load_taskset(loaders.taskset_config_type(name)(id=name))
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        raise FileNotFoundError(
            f"there is no taskset {name!r}: {error}; install the package that exports it."
        ) from error


def rows(name: str, *, limit: int = 0) -> list[Row]:
    """The rows of its first tasks, all where `limit` is 0. ValueError: a task without a prompt, or none at all."""
    taskset = load_taskset(name)
    if not limit and not taskset.bounded:
        raise ValueError(f"the taskset {name!r} never ends; set how many rows to take.")
    made = [_row(name, task.data) for task in (taskset.take(limit) if limit else taskset)]
    if not made:
        raise ValueError(f"the taskset {name!r} holds no tasks; a source needs at least one.")
    return made


def _row(name: str, data: Any) -> Row:
    if not data.prompt:
        raise ValueError(f"task {data.idx} of the taskset {name!r} has no prompt; its user would have to speak first.")
    prompt = data.prompt if isinstance(data.prompt, list) else []
    given = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else []
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    written = [message.model_dump(exclude_none=True) for message in prompt]
    messages = tuple(parse_message(message) for message in (*system, *given, *written))
    return Row(f"{name}/{data.id or data.idx}", "verifiers", messages, fields={"taskset": name, "index": data.idx})
