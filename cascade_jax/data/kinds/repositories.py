"""Columns of the kinds that change files: repair in one turn, repair with a shell, tasks of a terminal."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.data.kinds.columns import NoSignal, choice, parsed, text, texts, texts_by_name

_SCRIPTS = ("setup_script", "test_script", "regression_script")
_INSTANCE = (
    "instance_id",
    "repo",
    "repository",
    "base_commit",
    "version",
    "problem_statement",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    *_SCRIPTS,
)
COLUMNS = {
    "swe_repair": (*_INSTANCE, "relevant_file_contents", "test_files", "mode", "prompt"),
    "swe": (*_INSTANCE, "image", "files", "test_files", "history", "prompt"),
    "terminal": ("task_path", "files", "question"),
}


def _check_instance(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: texts(fields.get(name), name) if name.endswith("_TO_PASS") else fields[name]
        for name in _INSTANCE
        if name in fields
    }
    if "version" in found:
        found["version"] = str(found["version"])
    for name in set(found) - {"FAIL_TO_PASS", "PASS_TO_PASS"}:
        text(found, name)
    found |= {name: [] for name in ("FAIL_TO_PASS", "PASS_TO_PASS") if name not in found}
    return found | _files(fields, "test_files")


def _check_swe_repair(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    found = {
        **_check_instance(fields),
        **_files(fields, "relevant_file_contents"),
        **choice(fields, "mode", ("eval", "repro-gen")),
    }
    if not (found.get("patch") or found["FAIL_TO_PASS"] or found.get("test_script")):
        raise NoSignal("there is no patch and no test, so there is nothing to grade a repair by")
    return found


def _check_swe(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    found = {**_check_instance(fields), **text(fields, "image"), **_files(fields, "files")}
    text(found, "instance_id", needed=True)
    if not (found["FAIL_TO_PASS"] or found.get("test_script")):
        raise NoSignal("FAIL_TO_PASS is empty and there is no test_script, so there is nothing to grade a repair by")
    history = fields.get("history", [])
    if not isinstance(history, list) or not all(isinstance(commit, Mapping) for commit in history):
        raise ValueError("history must be a list of commits, each an object with message and files")
    return found


def _check_terminal(fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    found = {**text(fields, "task_path"), **text(fields, "question"), **_files(fields, "files")}
    if not (found.get("task_path") or found.get("files")):
        raise ValueError("task_path must be the folder of a task, or files the texts in one")
    return found


def _files(fields: Mapping[str, Any], name: str) -> dict[str, dict[str, str]]:
    """{name: {relative path: text}}, or {} where the column is absent."""
    if name not in fields:
        return {}
    files = texts_by_name(parsed(fields[name], name), name)
    for path in files:
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{name} has the path {path!r}; paths are relative and stay inside of the folder")
    return {name: files}


CHECKS = {"swe_repair": _check_swe_repair, "swe": _check_swe, "terminal": _check_terminal}
