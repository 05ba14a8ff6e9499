"""Every kind of row: what is read, what is refused and why, and that records and rows are each other's inverse."""

import copy
import json
import pickle

import pytest

from cascade_jax.data import tasks
from cascade_jax.data.rows import RowError, demonstration, parse_row, to_record

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
PROMPT = {"responses_create_params": {"input": [{"role": "user", "content": "Do it."}]}}
CALL = {"type": "function_call", "name": "add", "arguments": '{"a": 1}'}

RECORDS = {
    "instruction_following": {
        "id": 7,
        **PROMPT,
        "instruction_id_list": ["keywords:existence", "punctuation:no_comma", "count:count_increment_word"],
        "kwargs": [{"keywords": ["x"], "n": None}, None, {"keyword1": ["a"], "keyword2": "b"}],
        "grading_mode": "fraction",
    },
    "mcqa": {
        "uuid": "m-1",
        "responses_create_params": {"input": "Which?", "temperature": 0.5},
        "options": [{"A": "one"}, {"B": "two"}],
        "expected_answer": "B",
        "template_metadata": {"output_regex": ["Answer: ([A-Z])"], "template_id": 3},
    },
    "tool_call": {
        "responses_create_params": {"input": "Add.", "tools": [TOOL], "parallel_tool_calls": False},
        "expected_action": CALL,
    },
    "structured_output": {
        **PROMPT,
        "schema_str": '{"type": "object", "properties": {"a": {"type": "string"}}}',
        "schema_type": "yaml",
        "schema_fields_count": 1,
    },
    "math": {"question": "What is 1 + 1?", "expected_answer": 2, "pass_rate": 0.25},
    "preference": {**PROMPT, "principle": "Be kind."},
    "sft": {
        "messages": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "<think>\nEasy.\n</think>\nHello"},
        ],
        "domain": "chat",
    },
    "workplace": {
        "id": 3,
        "responses_create_params": {"input": "Tidy up.", "tools": [TOOL], "parallel_tool_calls": False},
        "ground_truth": '[{"name": "add", "arguments": "{\\"a\\": 1}"}]',
        "category": "email",
        "environment_name": "workbench",
        "pass_rate": 0.5,
    },
    "code": {
        **PROMPT,
        "verifier_metadata": {"unit_tests": {"inputs": ["1 2"], "outputs": ["3"], "fn_name": None}, "level": 1},
        "hash_id": "h",
        "dataset": "lcb",
    },
    "competitive": {
        **PROMPT,
        "competition_id": 2024,
        "problem_id": "nile",
        "subtask": "01-small",
        "subtask_score": 6.0,
        "problem": {
            "grader_files": [["grader.cpp", "int main() {}"]],
            "subtasks": {"01-small": {"aggregation": "min", "score": 6, "test_names": ["a"]}},
            "all_tests": {"a": {"input": "1", "output": "2", "group": "01"}},
        },
    },
    "swe_repair": {
        "prompt": "Repair it.",
        "instance": {
            "instance_id": "i-1",
            "problem_statement": "It is broken.",
            "patch": "--- a/f.py",
            "FAIL_TO_PASS": '["t.py::test_a"]',
            "PASS_TO_PASS": [],
            "hints": 7,
        },
        "metadata": {"relevant_file_contents": '{"f.py": "x = 1"}', "remove_repo_name": True},
        "mode": "eval",
    },
    "swe": {
        "instance_id": "i-2",
        "repo": "a/b",
        "base_commit": "c0ffee",
        "version": 1.5,
        "problem_statement": "It is broken.",
        "patch": "--- a/f.py",
        "test_patch": "--- a/t.py",
        "FAIL_TO_PASS": '["t.py::test_a"]',
        "PASS_TO_PASS": ["t.py::test_b"],
        "created_at": "2020",
    },
    "terminal": {"question": "Move it.", "task_path": "tasks/move", "files": {"task.toml": ""}, "kind": "terminal"},
    "long_context": {**PROMPT, "expected_answer": ["a", "b"], "grading_mode": "graph_f1", "length": 4096},
    "judged": {"kind": "judged", "question": "Who?", "expected_answer": "She"},
    "proof": {"question": "Show it.", "rubric": "Each step holds.", "reference": "Clearly."},
}


def parse(record: dict):
    return parse_row(record, where="rows.jsonl:12")


@pytest.mark.parametrize("kind", RECORDS)
def test_kind_is_detected_and_the_round_trip_is_exact(kind):
    row = parse(copy.deepcopy(RECORDS[kind]))
    assert row.kind == kind
    record = json.loads(json.dumps(to_record(row)))
    again = parse(record)
    assert again == row
    assert to_record(again) == record


@pytest.mark.parametrize("task", tasks.TASKS)
def test_generated_rows_keep_the_schema(task):
    for row in tasks.generate(task, "train", 30, seed=1):
        again = parse(json.loads(json.dumps(to_record(row))))
        assert (again.id, again.kind, again.messages, again.tools) == (row.id, row.kind, row.messages, row.tools)
        assert again.fields == row.fields
        assert demonstration(again) is not None


def test_canonical_fields():
    row = parse(RECORDS["instruction_following"])
    assert row.id == "7"
    assert row.fields["kwargs"] == [{"keywords": ["x"]}, {}, {"keyword1": "a", "keyword2": "b"}]
    assert row.fields["grading_mode"] == "fraction"
    assert row.messages == ({"role": "user", "content": "Do it."},)

    row = parse(RECORDS["mcqa"])
    assert row.id == "m-1"
    assert row.messages == ({"role": "user", "content": "Which?"},)
    assert row.fields["grading_mode"] == "strict_single_letter_boxed"
    assert row.extra == {"responses_create_params": {"temperature": 0.5}}

    row = parse(RECORDS["tool_call"])
    function = {key: value for key, value in TOOL.items() if key != "type"}
    assert row.tools == ({"type": "function", "function": function},)
    assert row.fields["expected_action"]["arguments"] == {"a": 1}
    assert to_record(row)["responses_create_params"]["tools"] == [TOOL]
    assert to_record(row)["expected_action"]["arguments"] == '{"a": 1}'

    assert parse(RECORDS["structured_output"]).extra == {"schema_fields_count": 1}
    assert parse(RECORDS["math"]).fields == {"question": "What is 1 + 1?", "expected_answer": "2"}
    assert parse(RECORDS["math"]).messages == ({"role": "user", "content": "What is 1 + 1?"},)


def test_sft_row_splits_thinking_from_the_last_message():
    row = parse(RECORDS["sft"])
    assert [m["role"] for m in row.messages] == ["system", "user"]
    assert demonstration(row) == {"role": "assistant", "content": "Hello", "reasoning_content": "Easy."}
    assert row.extra == {"domain": "chat"}


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("plain", None, "plain"),
        ("<think></think>plain", None, "plain"),
        ("<think>why</think>\n\nplain", "why", "plain"),
        ("why</think>plain", "why", "plain"),
    ],
)
def test_thinking_is_split(text, reasoning, content):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    message = demonstration(parse({"messages": messages}))
    assert message["content"] == content
    assert message.get("reasoning_content") == reasoning


def test_demonstration_of_another_kind():
    given = {"content": "", "reasoning_content": "r", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    row = parse({**RECORDS["tool_call"], "demonstration": given})
    assert demonstration(row)["tool_calls"] == [
        {"id": "", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]
    assert parse(json.loads(json.dumps(to_record(row)))) == row
    assert demonstration(parse(RECORDS["tool_call"])) is None


def test_responses_history_becomes_chat_messages_and_back():
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Add "}, {"type": "text", "text": "1"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I must add."}]},
        {"role": "assistant", "content": "Adding."},
        {**CALL, "call_id": "c1"},
        {**CALL, "call_id": "c2", "arguments": {"a": 2}},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"role": "assistant", "content": "Half done."},
        {"role": "assistant", "content": ""},
        {**CALL, "call_id": "c3"},
        {"type": "function_call_output", "call_id": "c3", "output": "3"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Alone."}]},
        {"role": "user", "content": "Go on."},
    ]
    row = parse({"responses_create_params": {"input": items, "tools": [TOOL]}, "expected_action": CALL})
    roles = [message["role"] for message in row.messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert row.messages[1]["content"] == "Add 1"
    first = row.messages[2]
    assert (first["reasoning_content"], first["content"]) == ("I must add.", "Adding.")
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert row.messages[3] == {"role": "tool", "content": "2", "tool_call_id": "c1"}
    assert "tool_calls" not in row.messages[5]
    assert parse(json.loads(json.dumps(to_record(row)))) == row


def test_nested_metadata_agents_and_explicit_kinds():
    flat = RECORDS["instruction_following"]
    names = ("instruction_id_list", "kwargs", "grading_mode")
    nested = {"id": 7, **PROMPT, "verifier_metadata": {name: flat[name] for name in names} | {"level": 2}}
    row = parse(nested)
    assert row.fields == parse(flat).fields
    assert row.extra == {"verifier_metadata": {"level": 2}}
    assert parse(json.loads(json.dumps(to_record(row)))) == row
    agent = {"agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}
    assert parse({**PROMPT, **agent, "expected_answer": "4"}).kind == "math"
    assert parse({**PROMPT, "kind": "preference", "expected_answer": "4"}).extra == {"expected_answer": "4"}


def test_instructions_and_batches_of_calls():
    request = {"input": "q", "instructions": "s", "tools": [{"type": "function", "function": {"name": "add"}}]}
    action = {"type": "function_call_batch", "calls": [CALL, {"name": "add", "arguments": {}}]}
    row = parse({"responses_create_params": request, "expected_action": action})
    assert [message["role"] for message in row.messages] == ["system", "user"]
    assert [call["arguments"] for call in row.fields["expected_action"]["calls"]] == [{"a": 1}, {}]
    assert parse(json.loads(json.dumps(to_record(row)))) == row
    message = parse({**PROMPT, "expected_action": {"type": "message", "content": "Which one?"}})
    assert message.fields["expected_action"]["content"] == "Which one?"


def test_id_of_a_row_without_one_is_that_of_its_content():
    record = RECORDS["tool_call"]
    first = parse(record)
    assert len(first.id) == 32
    assert parse(dict(reversed(record.items()))).id == first.id
    parsed_arguments = {**CALL, "arguments": {"a": 1}}
    assert parse({**record, "expected_action": parsed_arguments, "uuid": None}).id == first.id
    assert parse({**record, "expected_action": {**CALL, "arguments": "{}"}}).id != first.id


def without(kind: str, /, *names: str, **changed: object) -> dict:
    return {key: value for key, value in RECORDS[kind].items() if key not in names} | changed


def code(language: str = "python", **tests: object) -> dict:
    return {**PROMPT, "language": language, "unit_tests": tests}


BAD = {
    "placeholder": (without("math", _hf_placeholder={"row": 1}), "placeholder"),
    "no kind": ({"text": "x"}, "no column tells the kind of this row; it has text"),
    "empty": ({}, "it has no columns"),
    "wrong kind": ({"kind": "maths"}, "the kind 'maths' is not known"),
    "workplace": (without("workplace", ground_truth="[]"), "ground_truth is empty"),
    "workplace, new name": ({**PROMPT, "environment_name": "workplace_assistant"}, "ground_truth is empty"),
    "workplace text": (without("workplace", ground_truth="add(1)"), "ground_truth is not JSON"),
    "workplace call": (without("workplace", ground_truth=[{"arguments": "{}"}]), "a call of ground_truth has no name"),
    "workplace tool": (without("workplace", ground_truth=[{"name": "sub"}]), "'sub', which is not among the tools add"),
    "code": ({**PROMPT, "verifier_metadata": {"unit_tests": {}}}, "unit_tests is empty"),
    "code tests": (code(inputs=["1"], outputs=[]), "unit_tests has 1 inputs and 0 outputs"),
    "code outputs": (code(inputs=["1"], outputs=[3]), "unit_tests.outputs must be a list of texts"),
    "code function": (code(inputs=["1"], outputs=["1"], fn_name="a b"), "must be the name of a function"),
    "code language": (code(inputs=["1"], outputs=["1"], language="ada"), "allowed are python, cpp"),
    "competitive": ({**PROMPT, "competition_id": "x"}, "problem_id is None"),
    "subtask": (without("competitive", subtask="02"), "subtask is '02'; the problem has 01-small"),
    "problem": (without("competitive", problem={"all_tests": {}}), "all_tests is empty"),
    "problem test": (without("competitive", problem={"all_tests": {"a": {"input": "1"}}}), "all_tests['a'] must be"),
    "swe": ({**PROMPT, "instance": {"instance_id": "x"}}, "FAIL_TO_PASS is empty"),
    "swe id": (without("swe", "instance_id"), "instance_id must be a text that is not empty"),
    "swe tests": (without("swe", FAIL_TO_PASS="x"), "FAIL_TO_PASS is not JSON"),
    "repair": (without("swe_repair", "instance"), "there is no patch and no test"),
    "repair mode": (without("swe_repair", mode="guess"), "allowed are eval, repro-gen"),
    "repair files": (without("swe_repair", relevant_file_contents={"../f": ""}), "stay inside of the folder"),
    "terminal": (without("terminal", "task_path", "files"), "task_path must be the folder of a task"),
    "terminal folder": (without("terminal", "question"), "there is no tasks/move/instruction.md"),
    "recall": (without("long_context", expected_answer=[]), "expected_answer must be a list of texts"),
    "recall mode": (
        without("long_context", kind="long_context", grading_mode="some"),
        "allowed are graph_f1, all, any",
    ),
    "judged": (without("judged", expected_answer=""), "expected_answer is ''"),
    "proof": (without("proof", "rubric", "reference", kind="proof"), "a proof needs a rubric or a reference"),
    "no signal": ({**PROMPT, "schema_str": "", "environment_name": ""}, "no other column is"),
    "no prompt": (without("preference", "responses_create_params", kind="preference"), "the conversation is None"),
    "empty prompt": ({"responses_create_params": {"input": []}}, "must be a text or a list of messages"),
    "no text": ({"responses_create_params": {"input": ""}}, "message 0: the user's text is empty"),
    "request": ({"responses_create_params": "x"}, "responses_create_params is not an object"),
    "role": ({"responses_create_params": {"input": [{"role": "bot", "content": "x"}]}}, "role 'bot' is not known"),
    "item": ({"responses_create_params": {"input": [{"type": "image_call"}]}}, "type 'image_call' is not known"),
    "part": (
        {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}},
        "is not a text; only texts can be trained on",
    ),
    "ends with assistant": (
        {"responses_create_params": {"input": [{"role": "assistant", "content": "x"}]}},
        "ends with the assistant's message",
    ),
    "late system": (
        {"responses_create_params": {"input": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}},
        "message 1 has the role system; only the first one may",
    ),
    "tools": ({"responses_create_params": {"input": "q", "tools": "add"}}, "tools is 'add'"),
    "tool": ({"responses_create_params": {"input": "q", "tools": [{"type": "web"}]}}, "tool 0 is {'type': 'web'}"),
    "tool name": ({"responses_create_params": {"input": "q", "tools": [{"parameters": {}}]}}, "tool 0 has no name"),
    "ids": (without("instruction_following", instruction_id_list=[]), "instruction_id_list must be a list"),
    "kwargs": (without("instruction_following", kwargs=[{}]), "one entry for each of the 3 instruction ids"),
    "kwargs entry": (without("instruction_following", kwargs=[1, 2, 3]), "neither null nor an object"),
    "grading": (without("instruction_following", grading_mode="some"), "grading_mode is 'some'; allowed are binary"),
    "options": (without("mcqa", "options", grading_mode="lenient_boxed"), "options must be a list"),
    "one option": (without("mcqa", options=[{"A": "x"}]), "at least two different ones"),
    "same letters": (without("mcqa", options=[{"A": "x"}, {"A": "y"}]), "at least two different ones"),
    "option": (without("mcqa", options=[{"A": 1}, {"B": "y"}]), "an option is not a text"),
    "letter": (without("mcqa", expected_answer="C"), "expected_answer is 'C'; it must be one of the letters A, B"),
    "mode": (without("mcqa", grading_mode="binary"), "allowed are strict_single_letter_boxed"),
    "regex": (without("mcqa", template_metadata={"output_regex": "("}), "does not compile"),
    "regex type": (without("mcqa", template_metadata={"output_regex": [1]}), "a text or a list of texts"),
    "action": (without("tool_call", expected_action={"type": "shout"}), "expected_action must be an object of type"),
    "unknown call": (without("tool_call", expected_action={**CALL, "name": "sub"}), "not among the tools add"),
    "arguments": (without("tool_call", expected_action={**CALL, "arguments": "{"}), "are not JSON"),
    "argument list": (without("tool_call", expected_action={**CALL, "arguments": "[1]"}), "must be an object"),
    "no calls": (without("tool_call", expected_action={"type": "function_call_batch", "calls": []}), "list of calls"),
    "schema": (without("structured_output", schema_str="{"), "schema_str is not JSON"),
    "schema object": (without("structured_output", schema_str="[1]"), "the text of a JSON Schema object"),
    "schema type": (without("structured_output", schema_type="ini"), "allowed are json, yaml, xml, toml, csv"),
    "response mode": (without("structured_output", response_mode="song"), "allowed are text, tool_call"),
    "no tool name": (without("structured_output", response_mode="tool_call"), "needs a tool_name"),
    "answer": (without("math", expected_answer=" "), "expected_answer is ' '"),
    "principle": (without("preference", principle=3), "principle must be a text"),
    "last turn": ({"messages": [{"role": "user", "content": "x"}]}, "must end with the assistant's answer"),
    "only turn": ({"messages": [{"role": "assistant", "content": "x"}]}, "at least one message before it"),
    "empty turn": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None}]},
        "message 1 of the assistant has neither text nor tool calls",
    ),
    "open think": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>y"}]},
        "<think> is not closed",
    ),
    "late think": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "z<think>y</think>"}]},
        "text stands before <think>",
    ),
    "two thinks": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a</think>b</think>c"}]},
        "more than one pair of <think> tags",
    ),
    "demonstration": (without("math", demonstration="4"), "demonstration is a str"),
    "demonstration role": (without("math", demonstration={"role": "user", "content": "4"}), "of the assistant"),
    "empty demonstration": (without("math", demonstration={"content": ""}), "with text or tool calls"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_row_is_refused_with_place_and_reason(name):
    record, reason = BAD[name]
    with pytest.raises(RowError) as caught:
        parse(record)
    message = str(caught.value)
    assert message.startswith("rows.jsonl:12: ")
    assert reason in message
    assert "\n" not in message
    assert message.endswith(".")


def test_row_error_survives_pickling():
    error = pickle.loads(pickle.dumps(RowError("f:1", "it is bad")))
    assert (str(error), error.where, error.reason) == ("f:1: it is bad.", "f:1", "it is bad")


def places(value, path=()):
    """Every place in a nested JSON value."""
    yield path
    for key, child in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from places(child, (*path, key))


@pytest.mark.parametrize("kind", RECORDS)
def test_no_damage_gives_anything_but_a_row_or_a_row_error(kind):
    whole = {**RECORDS[kind], "agent_ref": {"name": "x"}, "demonstration": {"content": "d"}}
    whole["verifier_metadata"] = {"level": 1}
    refused = 0
    for path in list(places(whole))[1:]:
        for value in (None, 0, True, "", "x", [], [1], [[]], {}, {"a": 1}, [{}], [None]):
            record = copy.deepcopy(whole)
            holder = record
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            try:
                row = parse(record)
            except RowError:
                refused += 1
            else:
                assert parse(json.loads(json.dumps(to_record(row)))) == row
    assert refused > 20
