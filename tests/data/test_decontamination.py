"""What a benchmark has seen is left out, by words in a row, by whole short prompts and by address; nothing else is."""

import json

import pytest

from cascade_jax.data.decontamination import Benchmark
from cascade_jax.data.rows import parse_row
from launch import data as command

LONG = "A train leaves the town at nine and meets another one at noon on the way to the coast"


def row(text: str, **columns: object):
    return parse_row({"question": text, "expected_answer": "1", **columns}, where="x")


def faults(benchmark: Benchmark, texts: list[str]) -> list[bool]:
    return [benchmark.fault(row(text)) is not None for text in texts]


def test_words_in_a_row_count_whatever_stands_between_and_around_them():
    shared = "and meets another one at noon on the way"  # nine words
    benchmark = Benchmark.of([{"prompt": LONG}], 9)
    assert faults(benchmark, [f"Now: {shared.upper()}.", shared.replace(" ", ",\n- ")]) == [True, True]
    assert faults(benchmark, [shared.removesuffix(" way") + " road", "It rains."]) == [False, False]
    assert faults(Benchmark.of([{"prompt": LONG}], 13), [f"Now: {shared}.", f"Now: {LONG}!"]) == [False, True]


def test_a_short_prompt_counts_as_a_whole():
    benchmark = Benchmark.of([{"problem": "What is 2 + 2?"}], 9)
    assert faults(benchmark, ["what is 2+2", "What is 2 + 2 + 3?", "?"]) == [True, False, False]


def test_what_many_prompts_of_a_benchmark_share_is_its_template():
    template = "Answer the following question and put the letter of your choice in a box at the end: "
    benchmark = Benchmark.of([{"question": template + LONG}], 9)
    assert faults(benchmark, [f"{template}Why?"]) == [True]
    topics = [f"number {i} asks for the {i} th prime above {i * i} and for nothing else at all {i}" for i in range(30)]
    benchmark = Benchmark.of([{"question": template + topic} for topic in topics], 9)
    assert faults(benchmark, [f"{template}Why?", topics[3]]) == [False, True]


def test_addresses_count_wherever_they_stand_but_not_those_of_whole_sites():
    benchmark = Benchmark.of([{"question": "?", "url": "https://www.judge.org/Problem/12/?lang=en"}], 9)
    assert benchmark.fault(row("Solve it.", source="see http://judge.org/problem/12.")) is not None
    assert benchmark.fault(row("Solve http://judge.org/problem/12#a")) is not None
    assert benchmark.fault(row("Solve it.", source="https://judge.org/problem/123")) is None
    site = Benchmark.of([{"question": "?", "url": "https://judge.org/"}], 9)
    assert site.fault(row("Solve it.", source="https://judge.org")) is None


def test_system_texts_and_answers_do_not_count():
    chat = {"messages": [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": LONG}]}
    system = {"responses_create_params": {"input": "Tell me.", "instructions": LONG}, "expected_answer": "1"}
    benchmark = Benchmark.of([{"prompt": LONG}], 9)
    assert [benchmark.fault(parse_row(record, where="x")) for record in (chat, system)] == [None, None]
    with pytest.raises(ValueError, match="n=0 must be 1 or more words"):
        Benchmark.of([], 0)


def test_the_command_writes_what_is_left(tmp_path, capsys):
    clean = [{"id": f"r{i}", "question": f"What is {i} + {i}?", "expected_answer": str(2 * i)} for i in range(5)]
    seen = {"id": "seen", "question": LONG, "expected_answer": "1"}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*clean, seen, {"question": "?"}]))
    (tmp_path / "a.jsonl").write_text(json.dumps({"no": 1, "problem": f"{LONG}."}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"question": "What is 3 + 3?", "expected_answer": "6"}) + "\n")
    output = tmp_path / "clean.jsonl"
    against = ["--against", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    given = ["decontaminate", "--input", str(tmp_path / "rows.jsonl"), *against, "--output", str(output)]
    assert command.main(given) == 0
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == ["r0", "r1", "r2", "r4"]
    assert "4 rows written, 2 seen ones and 1 bad ones left out." in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "clean.jsonl", "rows.jsonl"]
    assert command.main([*given[:-1], str(tmp_path / "no" / "clean.jsonl")]) == 2
