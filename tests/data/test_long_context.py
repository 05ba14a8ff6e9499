"""Long prompts: their length by a count of the whole text, what has to be in them, and that no line is read twice."""

import itertools
import json
import re
import time
from collections import Counter

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from cascade_jax.data.long_context import GENERATORS, LongRows, write
from cascade_jax.data.long_context.documents import NEEDED
from cascade_jax.data.long_context.fill import Draft, LineCounter, filled
from cascade_jax.data.rows import parse_row, to_record
from cascade_jax.data.sources import open_rows
from cascade_jax.data.tasks import train_tokenizer

# The splits of the GPT-2 and of the Qwen family, whose pieces may hold a line's end with what stands before it
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TOKENS = 4000


def words(text):
    return text.split()


def byte_level(splits):
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(splits), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    texts = [text_of(row) for task in GENERATORS for row in LongRows(task, 1, tokens=1000, encode=words, seed=9)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    return lambda text: inner.encode(text).ids


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    tiny = train_tokenizer(tmp_path_factory.mktemp("long") / "tokenizer.model")
    return {"gpt2": byte_level(gpt2), "qwen": byte_level(QWEN), "sentencepiece": tiny.encode}


def text_of(row):
    return row.messages[0]["content"]


@pytest.mark.parametrize("task", GENERATORS)
@pytest.mark.parametrize("kind", ["gpt2", "qwen", "sentencepiece"])
def test_lengths_are_those_of_the_whole_text(encoders, task, kind):
    encode = encoders[kind]
    for tokens in (TOKENS, 2 * TOKENS + 1):
        (row,) = LongRows(task, 1, tokens=tokens, encode=encode, seed=tokens)
        whole = len(encode(text_of(row)))
        assert row.extra["tokens"] == whole  # line by line, or all at once
        assert tokens - 12 <= whole <= tokens


@pytest.mark.parametrize("task", ["needle", "documents"])
def test_a_million_tokens_in_seconds_without_reading_them_twice(encoders, task):
    read = 0

    def encode(text):
        nonlocal read
        read += len(text)
        return encoders["gpt2"](text)

    start = time.monotonic()
    (row,) = LongRows(task, 1, tokens=1_000_000, encode=encode)
    assert time.monotonic() - start < 60
    assert 1_000_000 - 12 <= row.extra["tokens"] <= 1_000_000
    lines = len(text_of(row).splitlines())
    assert read <= len(text_of(row)) + 2 * lines  # each line at most once, with the line's end before it


def test_a_line_is_counted_once():
    calls = []
    count = LineCounter(lambda text: calls.append(text) or [0] * len(text.split()))
    assert [count("a b\n"), count("c\n"), count("a b\n")] == [2, 1, 2]
    assert calls == ["\n", "\na b\n", "\nc\n"]


def test_seeds_rows_and_lengths_differ_and_repeat():
    first = list(LongRows("needle_multi_key", 3, tokens=600, encode=words, seed=1))
    assert first == list(LongRows("needle_multi_key", 3, tokens=600, encode=words, seed=1))
    assert first[:2] == list(LongRows("needle_multi_key", 2, tokens=600, encode=words, seed=1))
    other = LongRows("needle_multi_key", 1, tokens=600, encode=words)[0]
    assert len({text_of(row) for row in [*first, other]}) == 4
    assert len({row.id for row in first}) == 3


@pytest.mark.parametrize(
    ("task", "answers", "needles"),
    [
        ("needle", 1, 1),
        ("needle_multi_key", 1, 4),
        ("needle_multi_value", 4, 4),
        ("needle_multi_query", 4, 4),
    ],
)
def test_needles(task, answers, needles):
    places = set()
    for row in LongRows(task, 20, tokens=800, encode=words):
        found = re.findall(r"A secret number of (\w+ \w+) is (\d{7})\.", text_of(row))
        assert len(found) == needles and len(row.fields["expected_answer"]) == answers
        question = row.fields["question"]
        assert {number for key, number in found if key in question} == set(row.fields["expected_answer"])
        places.add(text_of(row).index(row.fields["expected_answer"][0]) * 4 // len(text_of(row)))
    assert places == {0, 1, 2, 3}


def test_needles_among_needles():
    (row,) = LongRows("needle_among_needles", 1, tokens=4000, encode=words)
    assert len(re.findall(r"A secret number of", text_of(row))) > 400
    assert text_of(row).count(row.fields["expected_answer"][0]) == 1


def test_prose_takes_the_place_of_noise():
    prose = [f"Line {i} of an essay, which goes on.\n" for i in range(30)]
    (row,) = LongRows("needle", 1, tokens=500, encode=words, prose=prose)
    lines = text_of(row).splitlines()
    essay = [int(line.split()[1]) for line in lines if line.startswith("Line")]
    assert len(essay) > 40 and all((a + 1) % 30 == b for a, b in itertools.pairwise(essay))
    assert "meter" not in text_of(row)


def test_variables_are_followed():
    for row in LongRows("variables", 10, tokens=1000, encode=words):
        has = {}
        for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", text_of(row)):
            has[name] = has.get(source, source)
        value = re.search(r"value (\d{5})", row.fields["question"])[1]
        assert {name for name, number in has.items() if number == value} == set(row.fields["expected_answer"])
        assert len(has) == 15 and len(row.fields["expected_answer"]) == 5


def test_common_words_are_the_most_common():
    for tokens in (500, 8000):
        (row,) = LongRows("common_words", 1, tokens=tokens, encode=words)
        listed = text_of(row).split("\n", 1)[1].rsplit("\n", 1)[0].split()
        counts = Counter(listed).most_common(11)
        assert {word for word, _ in counts[:10]} == set(row.fields["expected_answer"])
        assert counts[9][1] >= 4 * counts[10][1]


@pytest.mark.parametrize("task", ["documents", "documents_choice", "documents_judged"])
def test_documents_need_several(task):
    (row,) = LongRows(task, 1, tokens=3000, encode=words, seed=3)
    notes = dict(re.findall(r"^# (\w+ \w+)\n((?:[^#].*\n)*)", text_of(row), re.MULTILINE))
    assert len(notes) > 20
    question = text_of(row).splitlines()[-1 if task != "documents_choice" else -6]
    reached = [re.search(r"Start with (\w+ \w+)", question)[1]]
    for tie in re.findall(r"(?:to the|then to the) (\w+)", question.partition("reached,")[2]):
        reached.append(re.search(rf"The {tie} of \w+ \w+ is (\w+ \w+)\.", notes[reached[-1]])[1])
    number = re.search(r"door of \w+ \w+ is (\d+)", notes[reached[-1]])[1]
    assert len(set(reached)) == NEEDED
    gold = row.fields["expected_answer"]
    if task == "documents_choice":
        assert row.kind == "mcqa" and {gold: number} in row.fields["options"]
        others = [text for option in row.fields["options"] for text in option.values() if text != number]
        assert all(any(f" is {other}." in note for note in notes.values()) for other in others)
    else:
        assert (row.kind, gold) == (("judged", number) if task == "documents_judged" else ("long_context", [number]))
    assert text_of(row).count(f" is {number}.") == 1


def test_parents_in_a_graph():
    for row in LongRows("graph_parents", 10, tokens=900, encode=words):
        edges = re.findall(r"^(\w{6}) -> (\w{6})$", text_of(row), re.MULTILINE)
        child = re.search(r"parents of (\w{6})", row.fields["question"])[1]
        assert sorted(a for a, b in edges if b == child) == sorted(row.fields["expected_answer"])
        assert any(a == child for a, _ in edges)


@pytest.mark.parametrize("task", GENERATORS)
def test_rows_are_written_and_read_back(tmp_path, task):
    rows = list(LongRows(task, 2, tokens=1500, encode=words))
    path = tmp_path / "rows.jsonl"
    assert write(path, iter(rows)) == 2
    assert list(open_rows(str(path))) == rows
    assert parse_row(json.loads(json.dumps(to_record(rows[0]))), where="row") == rows[0]


def test_mistakes_are_one_sentence():
    with pytest.raises(ValueError, match="the long-context task 'novels' does not exist; choose one of needle, "):
        LongRows("novels", 1, tokens=99, encode=words)[0]
    with pytest.raises(ValueError, match=r"tokens=20 is too few: question and needles alone take \d+"):
        LongRows("needle", 1, tokens=20, encode=words)[0]


def test_pieces_keep_their_order_and_fillers_end():
    pieces = tuple(f"p{i}\n" for i in range(9))
    draft = Draft("head\n", pieces, iter(["x y\n"] * 3), "tail", ordered=True, crumbs=("z\n",))
    text, size = filled(draft, 30, LineCounter(words), np.random.default_rng(0))
    assert size == len(text.split()) == 30 and re.findall(r"p\d", text) == [f"p{i}" for i in range(9)]
    assert text.startswith("head\n") and text.endswith("tail") and text.count("z\n") == 13
