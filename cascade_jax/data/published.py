"""Names of columns in published data sets -> the names of `kinds`, for the kinds whose sources differ in them.

* HelpSteer3, config preference: context (text or messages), response1, response2, overall_preference (< 0: the first)
* R2E-Gym: repo_name, commit_hash, docker_image, expected_output_json {test: status after the repair}
* SWE-RL of Nemotron-Cascade-2: prompt, golden_patch, or an instance in the metadata of the request
* Harbor: a folder whose instruction.md is the question
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cascade_jax.data.kinds.columns import parsed

_SWE = {
    "golden_patch": "patch",
    "repo_name": "repo",
    "commit_hash": "base_commit",
    "docker_image": "image",
}


def renamed(kind: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the names of `kinds`; what it holds besides stays as it is. ValueError where it is broken."""
    return _RENAMED[kind](dict(record)) if kind in _RENAMED else dict(record)


def _preference(record: dict[str, Any]) -> dict[str, Any]:
    if "context" not in record or "responses_create_params" in record:
        return record
    record["responses_create_params"] = {"input": record.pop("context")}
    preferred = record.get("overall_preference")
    if isinstance(preferred, (int, float)):
        record.setdefault("reference", record.get("response2" if preferred > 0 else "response1"))
    return record


def _swe(record: dict[str, Any]) -> dict[str, Any]:
    request = record.get("responses_create_params")
    metadata = request.get("metadata") if isinstance(request, Mapping) else None
    if isinstance(metadata, Mapping) and "instance" not in record:
        instance = parsed(metadata.get("instance_dict") or {}, "responses_create_params.metadata.instance_dict")
        if not isinstance(instance, Mapping):
            raise ValueError("responses_create_params.metadata.instance_dict must be an object or its JSON text")
        rest = {name: value for name, value in metadata.items() if name != "instance_dict"}
        record["instance"] = {**rest, **instance}
        record["responses_create_params"] = {name: value for name, value in request.items() if name != "metadata"}
    if isinstance(record.get("instance"), str):
        record["instance"] = parsed(record["instance"], "instance")
    for theirs, ours in _SWE.items():
        if theirs in record and ours not in record:
            record[ours] = record.pop(theirs)
    if "expected_output_json" in record and "FAIL_TO_PASS" not in record:
        record = _r2e(record)
    return record


def _r2e(record: dict[str, Any]) -> dict[str, Any]:
    """R2E-Gym says which tests pass after the repair, and not which of them failed before it: all must pass.

    Its commit is the repair itself, so the work starts from the one before. Its tests are no part of the repository.
    """
    outcomes = parsed(record.pop("expected_output_json"), "expected_output_json")
    if not isinstance(outcomes, Mapping):
        raise ValueError("expected_output_json must be an object of test: status, or its JSON text")
    if "prompt" in record and record.get("problem_statement"):
        record["prompt_of_issue"] = record.pop("prompt")  # what the issue was written from: it shows the repair
    record["FAIL_TO_PASS"] = [test for test, status in outcomes.items() if status == "PASSED"]
    record.setdefault("instance_id", f"{record.get('repo')}__{record.get('base_commit')}")
    told = parsed(record.get("parsed_commit_content") or {}, "parsed_commit_content")
    before = told.get("old_commit_hash") if isinstance(told, Mapping) else None
    if before or record.get("base_commit"):
        record["base_commit"] = before or f"{record['base_commit']}^"
    run = parsed(record.get("execution_result_content") or {}, "execution_result_content")
    if isinstance(run, Mapping) and isinstance(run.get("test_file_codes"), list) and "test_files" not in record:
        names = run.get("test_file_names") or []
        record["test_files"] = {
            f"r2e_tests/{Path(str(name)).name}": code for name, code in zip(names, run["test_file_codes"], strict=False)
        }
    return record


def _terminal(record: dict[str, Any]) -> dict[str, Any]:
    path = record.get("task_path")
    if not isinstance(path, str) or {"responses_create_params", "question"} & set(record):
        return record
    instruction = Path(path) / "instruction.md"
    if not instruction.is_file():
        raise ValueError(f"there is no {instruction}; task_path must be the folder of a Harbor task")
    record["question"] = instruction.read_text(encoding="utf-8")
    return record


_RENAMED = {"preference": _preference, "swe": _swe, "swe_repair": _swe, "terminal": _terminal}
