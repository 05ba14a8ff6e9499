"""Pass rates of rows: which rows stay, and a curriculum that goes from easy to hard without losing a row."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from cascade_jax.config import CascadeConfig, ConfigError, CurriculumConfig, SourceConfig, build
from cascade_jax.data import sources
from cascade_jax.data.curriculum import Order
from cascade_jax.data.difficulty import keeps, pass_rate
from cascade_jax.data.pipeline import curriculum, prompts
from cascade_jax.types import Row
from cascade_jax.workbench import prepare
from configs import tiny_cascade

SLIDE = CurriculumConfig(start=0.9, end=0.1, spread=0.15)


def row(name: str, rate: float | None = None, **extra: object) -> Row:
    extra |= {} if rate is None else {"pass_rate": rate}
    return Row(name, "math", ({"role": "user", "content": name},), fields={"expected_answer": "1"}, extra=extra)


def rows(count: int, seed: int = 0) -> list[Row]:
    rates = np.random.default_rng(seed).integers(0, 9, count) / 8
    return [row(f"r{i}", float(rate)) for i, rate in enumerate(rates)]


def test_the_rate_is_given_or_counted():
    assert pass_rate(row("a", 0.25)) == 0.25
    assert pass_rate(row("a", pass_rate_total=8, pass_rate_passed=2)) == 0.25
    assert pass_rate(row("a", pass_rate_total=0, pass_rate_passed=0)) is None
    assert pass_rate(row("a")) is None
    with pytest.raises(ValueError, match=r"row a has pass_rate='high'; it must be a number from 0 to 1\."):
        pass_rate(row("a", "high"))


def test_solved_rows_go_and_a_tenth_of_the_unsolved_stays():
    def kept(rate: float, seed: int) -> set[str]:
        drawn = [row(f"r{i}", rate) for i in range(2000)]
        return {r.id for r in drawn if keeps(r, drop_solved=True, keep_unsolved=0.1, seed=seed)}

    assert kept(1.0, 0) == set()
    assert len(kept(0.125, 0)) == len(kept(0.875, 0)) == 2000
    assert 140 < len(kept(0.0, 0)) < 260
    assert kept(0.0, 0) == kept(0.0, 0) != kept(0.0, 1)
    assert keeps(row("a", 1.0), drop_solved=False, keep_unsolved=0.1, seed=0)
    assert keeps(row("a", pass_rate_total=0), drop_solved=True, keep_unsolved=0.0, seed=0)


def test_a_source_filters_by_rate(tmp_path):
    path = tmp_path / "rows.jsonl"
    records = [{"id": i, "question": "1?", "expected_answer": "1", "pass_rate": (i % 5) / 4} for i in range(500)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"kind": "jsonl", "path": str(path), "drop_solved": True, "keep_unsolved": 0.1}
    found = sources.load(SourceConfig(**source), split="train", seed=0)
    rates = Counter(r.extra["pass_rate"] for r in found)
    assert {rate: count for rate, count in rates.items() if rate} == {0.25: 100, 0.5: 100, 0.75: 100}
    assert 2 <= rates[0.0] <= 20
    assert [r.id for r in sources.load(SourceConfig(**source, rows=7), split="train", seed=0)] == [
        r.id for r in found[:7]
    ]
    path.write_text(json.dumps({"question": "1?", "expected_answer": "1"}))
    with pytest.raises(ValueError, match="has no pass_rate; write it with"):
        sources.load(SourceConfig(**source), split="train", seed=0)


def test_the_mean_rate_slides_from_easy_to_hard_and_no_row_comes_twice():
    pool = rows(4000)
    order = Order([r.extra["pass_rate"] for r in pool], SLIDE, draws=2000, seed=1)
    drawn = [order[n] for n in range(2000)]
    assert len(set(drawn)) == 2000
    rates = np.array([pool[i].extra["pass_rate"] for i in drawn])
    for part, mean in ((slice(0, 200), 0.86), (slice(900, 1100), 0.5), (slice(1800, 2000), 0.14)):
        assert abs(rates[part].mean() - mean) < 0.06
        assert rates[part].std() < 0.2
    assert order.mean(0) == pytest.approx(0.9) and order.mean(1999) == order.mean(10**6) == pytest.approx(0.1)


def test_every_epoch_holds_each_row_once():
    rates = [r.extra["pass_rate"] for r in rows(60)]
    order = Order(rates, SLIDE, draws=90, seed=0)
    drawn = [order[n] for n in range(240)]
    for epoch in range(4):
        assert sorted(drawn[60 * epoch : 60 * epoch + 60]) == list(range(60))
    fresh = Order(rates, SLIDE, draws=90, seed=0)
    assert fresh[239] == drawn[239] and fresh[3] == drawn[3]  # random access
    assert [Order(rates, SLIDE, draws=90, seed=1)[n] for n in range(20)] != drawn[:20]


def test_rows_without_a_rate_are_not_drawn_and_none_with_one_is_a_mistake():
    order = Order([None, 0.5, None, 0.1], SLIDE, draws=10, seed=0)
    assert {order[n] for n in range(20)} == {1, 3}
    with pytest.raises(ValueError, match="domain 'a' has no curriculum: no row has a pass_rate"):
        curriculum({"a": [row("x")]}, {"a": 1.0}, SLIDE, seed=0, draws=10)


def stream(seed: int = 0):
    domains, weights = {"a": rows(50), "b": rows(9, seed=1)}, {"a": 0.7, "b": 0.3}
    orders = curriculum(domains, weights, SLIDE, seed=seed, draws=200)
    return prompts(domains, weights, seed=seed, batch=10, orders=orders)


def test_the_ratio_of_a_batch_is_fixed_and_the_stream_resumes_exactly_at_every_position():
    whole, iterator = list(islice(stream(), 30)), stream()
    assert {tuple(sorted(Counter(name for name, _ in batch).items())) for batch in whole} == {(("a", 7), ("b", 3))}
    for n in range(20):
        state = json.loads(json.dumps(iterator.get_state()))
        resumed = stream()
        resumed.set_state(state)
        assert list(islice(resumed, 5)) == whole[n : n + 5]
        next(iterator)
    assert list(islice(stream(1), 30)) != whole


def test_a_run_with_a_curriculum_is_refused_before_its_first_step_where_rows_were_not_profiled(tmp_path):
    config = tiny_cascade.get_config().to_dict()
    config["stages"] = {"if_rl": config["stages"]["if_rl"]}
    config["order"], config["domains"] = ("if_rl",), {"instruction": config["domains"]["instruction"]}
    for source in ("train", "validation", "test"):
        config["domains"]["instruction"][source]["rows"] = 8
    config["stages"]["if_rl"]["rl"]["curriculum"] = {"start": 0.8}
    built = build(CascadeConfig, config)
    assert built.stages["if_rl"].rl.curriculum == CurriculumConfig(start=0.8)
    with pytest.raises(ConfigError, match=r"stages\.if_rl\.rl\.curriculum: no row of 'instruction' has a pass_rate"):
        prepare(built, tmp_path)
    with pytest.raises(ConfigError, match=r"curriculum\.spread=0\.0 must be positive"):
        CurriculumConfig(spread=0.0)
