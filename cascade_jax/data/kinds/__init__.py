"""The kinds of rows: how each is recognised, the columns that its verifier reads, and the checks that they must pass.

`Row.kind` names the verifier, `Row.fields` holds its columns in one canonical form each; [] marks lists, a ? columns
that may lack.

* instruction_following: instruction_id_list [str]; kwargs [dict], one for each id, without nulls; grading_mode binary
  or fraction; prompt?
* mcqa: options [{letter: text}]; expected_answer, one of the letters; grading_mode; template_metadata? (output_regex)
* structured_output: schema_str (JSON Schema as text); schema_type; response_mode text or tool_call; tool_name?;
  tool_payload_key?; expected_content?; grade_content? (bool)
* math: expected_answer (text); question?
* long_context: expected_answer [str]; grading_mode all or any of them recalled, or graph_f1 of them as nodes (so where
  it is missing and they come as JSON text); candidates?, a pattern of all that looks like an answer; question?
* tool_call: expected_action, one of {type: function_call, name, arguments: dict}, {type: function_call_batch, calls}
  and {type: message, content}
* workplace: ground_truth [{name, arguments: dict}], calls that lead to the wanted end state; category?; question?;
  tables? {table: [record]}
* code: unit_tests {inputs [str], outputs [str], fn_name: str or None (stdin and stdout)}; language? python or cpp;
  checker? (text); time_limit? (seconds); question?
* competitive: competition_id; problem_id; subtask; subtask_score?; language; time_limit?; question?; problem?, as
  `check_problem` gives it, where it does not stand in a side file (`cascade_jax.data.problems`)
* swe_repair (one turn): instance_id?; problem_statement?; relevant_file_contents? {path: text}; patch?, the gold one;
  FAIL_TO_PASS [str]; PASS_TO_PASS [str]; mode eval or repro-gen; test_files? {path: text}; test_patch?, repo?,
  repository? (a local folder or bundle of git), base_commit?, version?, setup_script?, test_script?,
  regression_script?; prompt?
* swe (several turns): the same without mode and relevant_file_contents; instance_id always; image? of a container;
  files? {path: text} and history? [{message, files}], a repository that is in the row
* terminal: task_path?, a Harbor folder; or files? {path: text}, what would stand in it; question?
* judged: expected_answer (text), which a judge compares with the given one; question?
* proof: rubric? and reference? (texts, at least one), which a judge grades a proof by; question?
* preference: principle?; reference?, an answer that win rates are measured against
* sft: demonstration, the last message
"""

from collections.abc import Callable, Mapping
from typing import Any

from cascade_jax.data.kinds import answers, judged, programs, repositories, tools
from cascade_jax.data.kinds.columns import NoSignal
from cascade_jax.data.kinds.detect import infer_kind
from cascade_jax.data.kinds.programs import check_problem
from cascade_jax.data.kinds.tools import written_calls

COLUMNS: dict[str, tuple[str, ...]] = (
    answers.COLUMNS | tools.COLUMNS | programs.COLUMNS | repositories.COLUMNS | judged.COLUMNS
)
KINDS = tuple(COLUMNS)
_CHECKS: dict[str, Callable[[Mapping[str, Any], tuple], dict[str, Any]]] = (
    answers.CHECKS | tools.CHECKS | programs.CHECKS | repositories.CHECKS | judged.CHECKS
)

__all__ = ["COLUMNS", "KINDS", "NoSignal", "check", "check_problem", "detect_kind", "written_calls"]


def detect_kind(record: Mapping[str, Any]) -> str:
    """The kind by its `kind` column, its agent, or the columns that it has. ValueError where nothing tells it."""
    if "kind" not in record:
        return infer_kind(record)
    if record["kind"] not in KINDS:
        raise ValueError(f"the kind {record['kind']!r} is not known; allowed are {', '.join(KINDS)}")
    return record["kind"]


def check(kind: str, fields: Mapping[str, Any], tools: tuple) -> dict[str, Any]:
    """The columns of a kind in canonical form. ValueError where one is missing or wrong, NoSignal where it is empty."""
    return {**fields, **_CHECKS[kind](fields, tools)} if kind in _CHECKS else dict(fields)
