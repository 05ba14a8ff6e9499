"""Rows in the shapes of the published data sets: their columns, nesting and JSON texts, with contents made up here."""

import json

TOOL = {
    "type": "function",
    "name": "email_delete_email",
    "description": "Deletes an email.",
    "parameters": {"type": "object", "properties": {"email_id": {"type": "string"}}, "required": ["email_id"]},
    "strict": True,
}
ACTIONS = {"type": "responses_api_agents", "name": "simple_agent"}


def request(text: str, **more: object) -> dict:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}], **more}}


IF = {
    "id": 11,
    **request("Write without commas. Mention rain twice."),
    "prompt": "Write without commas. Mention rain twice.",
    "instruction_id_list": ["punctuation:no_comma", "count:count_increment_word"],
    "kwargs": [None, {"keyword1": ["sun"], "keyword2": "rain", "N": None}],
    "grading_mode": "binary",
    "agent_ref": {"type": "responses_api_agents", "name": "instruction_following_simple_agent"},
    "dataset": "if",
}
MCQA = {
    **request("Which one? Put the letter in a box."),
    "options": [{"A": "ice"}, {"B": "steam"}, {"C": "water"}],
    "expected_answer": "B",
    "grading_mode": "strict_single_letter_boxed",
    "uuid": "9f",
    "pass_rate": 0.25,
    "pass_rate_total": 8,
    "pass_rate_passed": 2,
}
WORKPLACE = {
    "id": 4,
    "responses_create_params": {
        "input": [{"role": "system", "content": "Today is Monday."}, {"role": "user", "content": "Delete mail 7."}],
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "temperature": 1,
    },
    "ground_truth": [{"name": "email_delete_email", "arguments": '{"email_id": "7"}'}],
    "category": "workbench_email",
    "environment_name": "workbench",
    "agent_ref": {"type": "responses_api_agents", "name": "workplace_assistant_simple_agent"},
}
SCHEMA = {
    **request("Fill in the form as JSON."),
    "schema_str": json.dumps({"type": "object", "properties": {"name": {"type": "string"}}, "required": []}),
    "schema_type": "json",
    "schema_fields_count": 1,
}
UNGRADABLE = {**request("Delete nothing."), "ground_truth": [], "environment_name": "workbench", "schema_str": ""}
SWE_GYM = {
    "instance_id": "getmoto__moto-1",
    "repo": "getmoto/moto",
    "base_commit": "af31",
    "version": "4.1",
    "problem_statement": "The list is empty.",
    "hints_text": "",
    "patch": "diff --git a/m.py b/m.py",
    "test_patch": "diff --git a/t.py b/t.py",
    "FAIL_TO_PASS": ["t.py::test_a"],
    "PASS_TO_PASS": ["t.py::test_b"],
    "created_at": "2023-01-01",
}
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3:1",
    "commit_hash": "1f0c",
    "parsed_commit_content": '{"file_diffs": []}',
    "problem_statement": "[ISSUE] The table is empty. [/ISSUE]",
    "expected_output_json": json.dumps({"TestTable.test_a": "PASSED", "TestTable.test_b": "FAILED"}),
    "execution_result_content": json.dumps({"test_file_names": ["t.py"], "test_file_codes": ["def test_a(): ..."]}),
    "modified_files": ["Orange/table.py"],
}
SWE_NESTED = {
    "responses_create_params": {
        "input": [],
        "metadata": {
            "instance_id": "getmoto__moto-2",
            "base_commit": "af32",
            "dataset_name": "SWE-Gym/SWE-Gym",
            "problem_statement": "It fails.",
            "instance_dict": json.dumps({**SWE_GYM, "instance_id": "getmoto__moto-2", "FAIL_TO_PASS": '["t.py::c"]'}),
        },
    },
    "agent_ref": {"type": "responses_api_agents", "name": "swe_agents_train"},
}
SWE_PATCH = {"prompt": "Repair this file: x = 1", "golden_patch": "-x = 1\n+x = 2", "instance_id": "i"}
AGENTLESS = {
    **request("Repair it with SEARCH/REPLACE blocks."),
    "instance": {**SWE_GYM, "setup_script": "pip install .", "test_script": "pytest", "regression_script": "pytest"},
    "metadata": {"relevant_file_contents": json.dumps({"m.py": "x = 1\n"}), "remove_repo_name": False, "image": "a:1"},
    "mode": "eval",
    "dataset_name": "SWE-Gym/SWE-Gym",
    "dataset_split": "train",
}
CODE = {
    **request("Add two numbers."),
    "verifier_metadata": {
        "unit_tests": {"inputs": ["1 2\n"], "outputs": ["3\n"], "fn_name": None},
        "difficulty": "easy",
    },
    "hash_id": "c0",
    "dataset": "taco",
    "source": "codeforces",
    "agent_ref": {"type": "responses_api_agents", "name": "code_gen_simple_agent"},
}
IOI = {
    **request("Cross the Nile."),
    "competition_id": "ioi2024",
    "problem_id": "nile",
    "subtask": "01-equal",
    "subtask_score": 6,
}
SIDE_FILE = {
    "ioi2024": {
        "nile": {
            "compile": "g++ -o nile grader.cpp nile.cpp",
            "run": "./nile",
            "grader_files": [["grader.cpp", "int main() {}"], ["nile.h", ""]],
            "subtasks": {
                "00-samples": {"aggregation": "min", "score": 0.5, "score_precision": 2, "test_names": ["0-01"]},
                "01-equal": {"aggregation": "min", "score": 6, "score_precision": 2, "test_names": ["0-01", "1-01"]},
            },
            "all_tests": {
                "0-01": {"input": "1", "output": "1", "group": "00"},
                "1-01": {"input": "2", "output": "2", "group": "01"},
            },
        }
    }
}
NIAH = {**request("Who are the parents of n4?"), "expected_answer": '["n1", "n2"]', "graph_size": 40}
MATH = {**request("What is 2 + 2?"), "question": "What is 2 + 2?", "expected_answer": "4"}
PLACEHOLDER = {"_hf_placeholder": {"row": 3}, "question": None, "expected_answer": "17", **request("")}
HELPSTEER3 = {
    "domain": "general",
    "language": "english",
    "context": [{"role": "user", "content": "Name a fruit."}],
    "response1": "Plum.",
    "response2": "No.",
    "overall_preference": -2,
    "individual_preference": [{"score": -2, "reasoning": "It helps."}],
}
PROMPT_ONLY = {**request("Describe rain."), "principle": "Be kind."}
SFT = {
    "messages": [
        {"role": "system", "content": ""},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nA greeting.\n</think>\nHello"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "<think>\nThey leave.\n</think>\nBye"},
    ],
    "domain": "chat",
    "source": "made up",
    "generator": "GPT-OSS-120B",
}
SFT_PLAIN = {
    "messages": [
        {"role": "user", "content": "ls"},
        {"role": "assistant", "content": "<think></think>", "tool_calls": [{"name": "sh", "arguments": '{"c": "ls"}'}]},
        {"role": "tool", "content": "a b"},
        {"role": "assistant", "content": "Two files."},
    ],
    "domain": "swe",
    "source": "made up",
    "generator": "Qwen3-Coder-480B-A35B",
}

# data set and configuration -> [(row, its kind)]; None: no answer can be graded, or the row is refused
CASCADE2_RL = {
    "IF-RL": [(IF, "instruction_following")],
    "multi-domain-RL": [(MCQA, "mcqa"), (WORKPLACE, "workplace"), (SCHEMA, "structured_output"), (UNGRADABLE, None)],
    "MOPD": [(IF, "instruction_following"), (MATH, "math"), (MCQA, "mcqa"), (WORKPLACE, "workplace")],
    "SWE-RL": [(SWE_GYM, "swe"), (R2E, "swe"), (SWE_NESTED, "swe"), (SWE_PATCH, "swe_repair")],
}
OTHERS = {
    "Nano-3 blend": [(MATH, "math"), (CODE, "code"), (NIAH, "long_context"), (PROMPT_ONLY, "preference")],
    "HelpSteer3": [(HELPSTEER3, "preference")],
    "agentless": [(AGENTLESS, "swe_repair")],
    "IOI": [(IOI, "competitive")],
    "Cascade-2 SFT": [(SFT, "sft"), (SFT_PLAIN, "sft")],
}
