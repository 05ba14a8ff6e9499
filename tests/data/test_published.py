"""The published schemas, from JSONL, Parquet and a stream: what is read, what is kept beside it, what is left out."""

import copy
import json
from collections import Counter

import pyarrow
import pyarrow.parquet
import pytest

from cascade_jax.config import SourceConfig
from cascade_jax.data import sources
from cascade_jax.data.problems import read_problems
from cascade_jax.data.rows import RowError, UngradableRow, demonstration, parse_row, to_record
from launch import data as command
from tests.data import published_rows as published
from tests.data.test_rows import places

ALL = {
    f"{name} {i}": pair
    for name, rows in (published.CASCADE2_RL | published.OTHERS).items()
    for i, pair in enumerate(rows)
}


def parse(record: dict):
    return parse_row(json.loads(json.dumps(record)), where="x:1")


@pytest.mark.parametrize("name", [name for name, (_, kind) in ALL.items() if kind])
def test_a_published_row_is_read_and_nothing_in_it_is_lost(name):
    record, kind = ALL[name]
    row = parse(record)
    assert row.kind == kind
    assert parse(to_record(row)) == row
    kept = json.dumps(to_record(row), ensure_ascii=False)
    known = {"agent_ref", "instance", "metadata", "verifier_metadata", "responses_create_params", "context", "messages"}
    renamed = {"golden_patch", "repo_name", "commit_hash", "docker_image", "expected_output_json"}
    for column in set(record) - known - renamed - {"id", "uuid"}:
        assert f'"{column}"' in kept, column
    assert parse({**record, "a_new_column": [1, None]}).extra["a_new_column"] == [1, None]


def test_cascade2_columns_become_the_fields_that_verifiers_read():
    fields = parse(published.WORKPLACE).fields
    assert fields["ground_truth"] == [{"name": "email_delete_email", "arguments": {"email_id": "7"}}]
    assert parse(published.WORKPLACE).extra["responses_create_params"] == {
        "parallel_tool_calls": False,
        "temperature": 1,
    }
    text = {**published.WORKPLACE, "ground_truth": json.dumps(published.WORKPLACE["ground_truth"])}
    assert parse(text).fields == fields
    assert parse({**text, "environment_name": "workplace_assistant"}).kind == "workplace"
    assert parse(published.IF).fields["kwargs"] == [{}, {"keyword1": "sun", "keyword2": "rain"}]
    by_letter = {"A": "ice", "B": "steam", "C": "water"}
    assert parse({**published.MCQA, "options": by_letter}).fields == parse(published.MCQA).fields
    assert parse(published.MCQA).extra == {"pass_rate": 0.25, "pass_rate_total": 8, "pass_rate_passed": 2}


def test_swe_rows_of_every_shape_have_the_same_fields():
    gym, r2e, nested = (parse(row) for row in (published.SWE_GYM, published.R2E, published.SWE_NESTED))
    assert gym.fields["FAIL_TO_PASS"] == ["t.py::test_a"]
    assert gym.messages == ({"role": "user", "content": "The list is empty."},)
    assert gym.extra == {"hints_text": "", "created_at": "2023-01-01"}
    assert nested.fields == {**gym.fields, "instance_id": "getmoto__moto-2", "FAIL_TO_PASS": ["t.py::c"]}
    assert r2e.fields["repo"] == "orange3" and r2e.fields["image"] == "namanjain12/orange3:1"
    assert r2e.fields["base_commit"] == "1f0c^"  # the published commit is the repair
    assert (r2e.fields["instance_id"], r2e.fields["FAIL_TO_PASS"]) == ("orange3__1f0c", ["TestTable.test_a"])
    assert r2e.extra["modified_files"] == ["Orange/table.py"]
    agentless, patch = parse(published.AGENTLESS), parse(published.SWE_PATCH)
    assert agentless.fields["relevant_file_contents"] == {"m.py": "x = 1\n"}
    assert agentless.fields["FAIL_TO_PASS"] == ["t.py::test_a"]
    assert agentless.fields["test_script"] == "pytest"
    assert patch.fields["patch"] == published.SWE_PATCH["golden_patch"]
    assert patch.messages[0]["content"] == published.SWE_PATCH["prompt"]
    as_lists = {**published.AGENTLESS["instance"], "PASS_TO_PASS": json.dumps(["t.py::test_b"])}
    assert parse({**published.AGENTLESS, "instance": as_lists}).fields == agentless.fields


def test_helpsteer3_gives_the_preferred_answer_as_reference():
    row = parse(published.HELPSTEER3)
    assert row.messages == ({"role": "user", "content": "Name a fruit."},)
    assert row.fields == {"reference": "Plum."}
    assert row.extra["response2"] == "No."
    assert parse({**published.HELPSTEER3, "overall_preference": 1}).fields == {"reference": "No."}
    assert parse({**published.HELPSTEER3, "context": "Name a fruit."}).messages == row.messages


def test_sft_rows_keep_where_they_are_from_and_split_their_thoughts():
    row = parse(published.SFT)
    assert demonstration(row) == {"role": "assistant", "content": "Bye", "reasoning_content": "They leave."}
    assert row.messages[2]["reasoning_content"] == "A greeting."
    assert row.extra == {name: published.SFT[name] for name in ("domain", "source", "generator")}
    assert "reasoning_content" not in demonstration(parse(published.SFT_PLAIN))


@pytest.mark.parametrize("name", ["SWE-RL 1", "SWE-RL 2", "HelpSteer3 0", "agentless 0", "multi-domain-RL 1"])
def test_no_damage_to_a_published_row_gives_anything_but_a_row_or_a_row_error(name):
    whole, refused = ALL[name][0], 0
    for path in list(places(whole))[1:]:
        for value in (None, 0, True, "", "x", [], [1], {}, {"a": 1}, "[1]", '{"a": [1]}'):
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
                assert parse(to_record(row)) == row
    assert refused > 5


def test_a_placeholder_is_refused_and_a_row_without_a_signal_is_no_fault():
    with pytest.raises(RowError, match="placeholder of another data set; fill it with that data set's own script"):
        parse(published.PLACEHOLDER)
    with pytest.raises(UngradableRow, match="ground_truth is empty"):
        parse(published.UNGRADABLE)
    with pytest.raises(UngradableRow, match="schema_str is not what an answer could be graded by"):
        parse({**published.request("Fill in."), "schema_str": "", "pass_rate": 0.0})


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def hub(request, tmp_path_factory) -> str:
    """A data set on disk as the hub lays it out: one folder for each configuration, which README.md names."""
    folder, entries = tmp_path_factory.mktemp("hub") / "Cascade-2-RL", []
    for name, pairs in published.CASCADE2_RL.items():
        (folder / name).mkdir(parents=True)
        records = [record for record, _ in pairs for _ in range(3)]
        path = f"{name}/train.{request.param}"
        if request.param == "parquet":
            columns = sorted({key for record in records for key in record})
            table = pyarrow.Table.from_pylist([{key: record.get(key) for key in columns} for record in records])
            pyarrow.parquet.write_table(table, folder / path)
        else:
            (folder / path).write_text("".join(json.dumps(record) + "\n" for record in records))
        entries.append(f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {path}\n")
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(entries) + "---\n")
    return str(folder)


@pytest.mark.parametrize("config", published.CASCADE2_RL)
def test_a_stream_gives_the_rows_of_the_file(hub, config, caplog):
    streamed = sources.load(SourceConfig(kind="hf", path=f"{hub}:{config}"), split="train", seed=0)
    read = sources.load(SourceConfig(kind="folder", path=f"{hub}/{config}"), split="train", seed=0)
    assert Counter(row.kind for row in read) == Counter(kind for _, kind in published.CASCADE2_RL[config] * 3 if kind)
    for one, other in zip(streamed, read, strict=True):
        assert (one.kind, one.messages, one.fields) == (other.kind, other.messages, other.fields)
    left_out = [record.getMessage() for record in caplog.records if "3 rows are left out" in record.getMessage()]
    assert len(left_out) == (2 if config == "multi-domain-RL" else 0)


def test_a_source_takes_the_rows_of_one_kind(hub):
    mixed = {"kind": "folder", "path": f"{hub}/multi-domain-RL"}
    rows = sources.load(SourceConfig(**mixed, row_kind="workplace", rows=2), split="train", seed=0)
    assert [row.kind for row in rows] == ["workplace"] * 2
    with pytest.raises(ValueError, match=r"holds none of the rows that this source asks for \(row_kind='math'"):
        sources.load(SourceConfig(**mixed, row_kind="math"), split="train", seed=0)


def test_what_cannot_be_streamed_is_one_sentence(hub):
    for path, reason in (
        (f"{hub}:IF", "cannot be read after row 0: BuilderConfig 'IF' not found"),
        (f"{hub}-2", "cannot be read after row 0"),
    ):
        with pytest.raises(ValueError, match=reason) as caught:
            sources.load(SourceConfig(kind="hf", path=path), split="train", seed=0)
        assert "\n" not in str(caught.value)


def test_validate_streams_and_counts(hub, capsys):
    assert command.main(["validate", f"hf:{hub}:multi-domain-RL"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["3", "mcqa"],
        ["3", "structured_output"],
        ["3", "workplace"],
        ["3", "left"],
    ]
    assert command.main(["validate", f"{hub}/MOPD"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["3", kind] for kind in ("instruction_following", "math", "mcqa", "workplace")
    ]
    assert command.main(["validate", f"hf:{hub}:MOPD", "--split=test"]) == 0  # the only split that there is
    assert command.main(["validate", f"hf:{hub}:MOPD", "--problems=x"]) == 2
    assert "--problems goes with rows in files" in capsys.readouterr().err


def test_a_stream_is_prepared(hub, tmp_path, capsys):
    given = ["prepare", "--input", f"hf:{hub}:multi-domain-RL", "--output", str(tmp_path / "rows")]
    assert command.main(given) == 0
    assert "9 rows written, 3 bad ones left out." in capsys.readouterr().out
    source = SourceConfig(kind="tfds", path=str(tmp_path / "rows"), row_kind="structured_output")
    assert len(sources.load(source, split="train", seed=0)) == 3


def test_faults_that_differ_in_a_name_or_a_number_count_as_one(tmp_path, capsys):
    letters = [{**published.MCQA, "expected_answer": letter} for letter in "XYZ"]
    files = [{**published.AGENTLESS, "mode": mode} for mode in ("a", "b")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [published.MCQA, *letters, *files, "no row"]))
    assert command.main(["validate", str(path)]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "       1  mcqa",
        f"       3  bad: expected_answer is 'X'; it must be one of the letters A, B, C (first at {path}:2)",
        f"       2  bad: mode is 'a'; allowed are eval, repro-gen (first at {path}:5)",
        f"       1  bad: the row is a str, not an object (first at {path}:7)",
    ]


def test_contest_rows_find_their_problem_in_a_side_file(tmp_path, capsys):
    problem = published.SIDE_FILE["ioi2024"]["nile"]
    named = {"competition_id": "ioi2024", "problem_id": "nile", **problem}
    forms = {
        "nested": json.dumps(published.SIDE_FILE, indent=1),
        "list": json.dumps([named]),
        "lines": json.dumps(named) + "\n" + json.dumps({**named, "problem_id": "hieroglyphs"}) + "\n",
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(published.IOI) + "\n")
    assert "problem" not in sources.open_rows(str(rows))[0].fields
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
        assert {"ioi2024"} == {competition for competition, _ in read_problems(tmp_path / name)}
        source = SourceConfig(kind="jsonl", path=str(rows), problems=str(tmp_path / name))
        [row] = sources.load(source, split="train", seed=0)
        assert row.id == "ioi2024-nile-01-equal"
        assert row.fields["problem"]["grader_files"] == {"grader.cpp": "int main() {}", "nile.h": ""}
        assert row.fields["problem"]["subtasks"]["01-equal"]["test_names"] == ["0-01", "1-01"]
    wrong = [{**published.IOI, "subtask": "09"}, {**published.IOI, "problem_id": "mosaic"}]
    rows.write_text("".join(json.dumps(record) + "\n" for record in [published.IOI, *wrong]))
    assert command.main(["validate", str(rows)]) == 0
    capsys.readouterr()
    assert command.main(["validate", str(rows), "--problems", str(tmp_path / "nested")]) == 2
    out = capsys.readouterr().out
    assert "subtask is '09'; the problem has 00-samples, 01-equal" in out
    assert f"the problem 'mosaic' of 'ioi2024' is not in the side file (first at {rows}:3)" in out
    bad = {**problem, "subtasks": {"01": {"score": 6, "test_names": ["7"]}}}
    (tmp_path / "bad.json").write_text(json.dumps({"ioi2024": {"nile": bad}}))
    with pytest.raises(
        ValueError, match=r"bad\.json: problem 'nile' of 'ioi2024': subtasks\['01'\]\.test_names must name"
    ):
        read_problems(tmp_path / "bad.json")


def test_a_folder_of_harbor_tasks_is_a_source(tmp_path):
    for name in ("b-count", "a-move"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.toml").write_text("")
        (tmp_path / name / "instruction.md").write_text(f"Do {name}.")
    rows = sources.load(SourceConfig(kind="folder", path=str(tmp_path)), split="train", seed=0)
    assert [(row.id, row.kind) for row in rows] == [("a-move", "terminal"), ("b-count", "terminal")]
    assert rows[0].messages == ({"role": "user", "content": "Do a-move."},)
    assert rows[0].fields["task_path"] == str(tmp_path / "a-move")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds neither \.jsonl or \.parquet files nor folders with a task\.toml"):
        sources.open_rows(str(tmp_path / "empty"))
