"""Which kind a row is of, where no column says so: by its agent in NeMo-Gym, else by the columns that it has."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.data.kinds.answers import GRADING
from cascade_jax.data.kinds.columns import NoSignal

_AGENTS = {  # a part of the agent's name in NeMo-Gym -> kind; the first one that fits
    "instruction_following": "instruction_following",
    "mcqa": "mcqa",
    "single_step_tool_use": "tool_call",
    "structured_outputs": "structured_output",
    "math_with": "math",
    "genrm": "preference",
    "workplace_assistant": "workplace",
    "code_gen": "code",
    "swerl": "swe_repair",
    "swe": "swe",
    "terminal": "terminal",
    "lc_judge": "judged",
    "equivalence_llm_judge": "judged",
    "niah": "long_context",
    "proof": "proof",
}


def infer_kind(record: Mapping[str, Any]) -> str:
    """The kind by the agent or the columns. ValueError where nothing tells it; NoSignal where it was left empty."""
    agent_ref = record.get("agent_ref")
    agent = str(agent_ref.get("name")) if isinstance(agent_ref, Mapping) else ""
    for part, kind in _AGENTS.items():
        if part in agent:
            return kind
    nested = [record[name] for name in ("verifier_metadata", "metadata") if isinstance(record.get(name), Mapping)]
    columns = {name: value for holder in (*reversed(nested), record) for name, value in holder.items()}
    answer = columns.get("expected_answer")
    asked = {"responses_create_params", "question", "prompt"} & set(columns)
    signs: tuple[tuple[bool, str], ...] = (
        ("messages" in columns and not asked, "sft"),
        ("instruction_id_list" in columns, "instruction_following"),
        (columns.get("environment_name") in ("workbench", "workplace_assistant"), "workplace"),
        ("competition_id" in columns, "competitive"),
        ("unit_tests" in columns, "code"),
        (bool({"relevant_file_contents", "golden_patch"} & set(columns)), "swe_repair"),
        (columns.get("mode") in ("eval", "repro-gen"), "swe_repair"),
        (bool({"instance", "FAIL_TO_PASS", "base_commit", "expected_output_json"} & set(columns)), "swe"),
        ("task_path" in columns, "terminal"),
        (bool(columns.get("schema_str")), "structured_output"),
        ("expected_action" in columns, "tool_call"),
        ("options" in columns or columns.get("grading_mode") in GRADING["mcqa"], "mcqa"),
        ("rubric" in columns, "proof"),
        (_is_list(answer) or columns.get("grading_mode") in GRADING["long_context"], "long_context"),
        ("expected_answer" in columns, "math"),
        ("messages" in columns, "sft"),
        ("context" in columns and "response1" in columns, "preference"),
    )
    for present, kind in signs:
        if present:
            return kind
    empty = [name for name in ("schema_str", "ground_truth") if name in columns]
    if empty:
        raise NoSignal(f"{empty[0]} is not what an answer could be graded by, and no other column is")
    if "responses_create_params" in columns:
        return "preference"
    raise ValueError(f"no column tells the kind of this row; it has {', '.join(sorted(record)) or 'no columns'}")


def _is_list(answer: Any) -> bool:
    """Nodes of a graph come as a list of texts or as its JSON text, which no answer to a sum looks like."""
    return isinstance(answer, list) or (isinstance(answer, str) and answer.lstrip().startswith('["'))
