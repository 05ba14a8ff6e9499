"""The bench says which ways agree, and autotune writes down what it measured."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import autotune, tuning
from pallas_kernels.bench.__main__ import markdown, rows_of
from pallas_kernels.bench.cases import OPERATIONS, Case, skewed
from pallas_kernels.bench.others import materialised_logprob
from pallas_kernels.token_logprob import token_logprob


def ours(hidden, head, targets):
    return token_logprob(hidden, head, targets)[:2]


def case(**other) -> Case:
    def make() -> tuple:
        keys = jax.random.split(jax.random.key(0), 2)
        return (
            jax.random.normal(keys[0], (512, 16)),
            jax.random.normal(keys[1], (16, 40_000)) / 4,
            jnp.arange(512) * 70,
        )

    return Case("token_logprob", "small", make, {"ours": ours, **other}, 2.0 * 512 * 16 * 40_000)


def test_a_row_for_every_way_that_runs():
    tpu = functools.partial(token_logprob, implementation="pallas_tpu")
    rows = rows_of(case(materialised=materialised_logprob, tpu=tpu), repeats=3, budget=10)
    assert [row["way"] for row in rows] == ["ours", "materialised"]
    assert rows[0]["times_ours"] == 1 and rows[1]["error"] < 2e-5
    assert rows[0]["scratch_mib"] < rows[1]["scratch_mib"]
    assert markdown(rows, "a device").count("\n| token_logprob |") == 2


def test_ways_that_disagree_are_no_comparison():
    def off(hidden, head, targets):
        logprobs, entropy = materialised_logprob(hidden, head, targets)
        return logprobs * 1.001, entropy

    with pytest.raises(RuntimeError, match=r"off is .* off ours"):
        rows_of(case(off=off), repeats=3, budget=10)


def test_what_is_faster_is_filed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An operation that takes the longer the further one of its sizes is from 2**24."""

    def run(x):
        size = tuning.blocks("token_logprob", x.dtype, tokens=x.shape[0], width=x.shape[1])["part_logits"]
        return jax.lax.fori_loop(0, 300 * abs(size.bit_length() - 25), lambda _, x: jnp.sin(x) @ x, x)

    (tmp_path / "token_logprob.json").write_text((tuning.FOLDER / "token_logprob.json").read_text())
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    tuning._table.cache_clear()
    said = []
    work = Case("token_logprob", "a loop", lambda: (jnp.ones((64, 64)) / 64,), {"ours": run}, 1.0)
    found = autotune.tune(work, said.append, tmp_path, repeats=3)
    same, other = (tuning.blocks("token_logprob", jnp.float32, tokens=64, width=width) for width in (64, 65))
    tuning._table.cache_clear()
    assert found["token_logprob"]["part_logits"] == same["part_logits"] == 2**24 != other["part_logits"]
    assert said


def test_groups_are_skewed_and_complete():
    sizes = skewed(4096, 16)
    assert sizes.sum() == 4096 and sizes.max() > 2 * sizes.mean() > 4 * sizes.min()


def test_every_operation_has_candidates():
    tables = {path.stem for path in tuning.FOLDER.glob("*.json")}
    assert tables and all(autotune.candidates(table) for table in tables)
    for table in tables:
        assert set(autotune.candidates(table)) <= set(
            json.loads((tuning.FOLDER / f"{table}.json").read_text())["default"]
        )
    assert set(OPERATIONS) == {"grouped_matmul", "token_logprob", "attention", "ssd"}
