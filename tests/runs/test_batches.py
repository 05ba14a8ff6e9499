"""From groups to batches: every number lies at the position that predicts its token."""

import numpy as np
import pytest

from cascade_jax.evaluation import summarize, wilson
from cascade_jax.reward import Verdict
from cascade_jax.seeding import derive
from cascade_jax.stages.batches import pack_rows, row_bucket, sequence
from cascade_jax.types import Group, Prompt, Row, Sample


def group(prompt: list[int], *samples: list[int], stop_reason: str = "stop") -> Group:
    made = tuple(
        Sample(
            ids=np.array(ids, np.int32),
            logprobs=-np.array(ids, np.float32),
            mask=np.ones(len(ids), bool),
            stop_reason=stop_reason,
            version=0,
        )
        for ids in samples
    )
    return Group(Prompt(np.array(prompt, np.int32), Row("r", "math", ()), "math"), made)


def test_fields_meet_their_targets():
    one = group([1, 2], [3, 4, 5], [6])
    sequences = [sequence(one, sample, {"advantages": 7.0}) for sample in one.samples]
    batch = pack_rows(sequences, 8, micro_batches=1)
    assert batch.ids_BT.tolist() == [[1, 2, 3, 4, 5, 1, 2, 6], *[[0] * 8] * 7]
    assert batch.mask_BT[0].tolist() == [False, True, True, True, False, False, True, False]
    live = batch.mask_BT
    assert batch.targets_BT[live].tolist() == [3, 4, 5, 6]
    assert batch.fields["sampler_logprobs"][live].tolist() == [-3, -4, -5, -6]
    assert batch.fields["advantages"][live].tolist() == [7] * 4
    assert not batch.fields["advantages"][~live].any()


def test_a_sample_that_takes_no_part_has_an_empty_mask():
    one = group([1], [2, 3])
    assert not sequence(one, one.samples[0], {}, trained=False).trained.any()


@pytest.mark.parametrize(
    ("rows", "micro", "size"),
    [(0, 1, 8), (3, 1, 8), (9, 1, 16), (16, 1, 16), (17, 1, 32), (17, 4, 32), (33, 4, 64), (33, 3, 66)],
)
def test_few_shapes(rows, micro, size):
    assert row_bucket(rows, micro) == size


def test_wilson_against_its_definition():
    """The bounds are the proportions p at which the observed mean lies 1.96 standard errors away."""
    low, high = wilson(0.3, 50)
    for bound in (low, high):
        assert abs(0.3 - bound) == pytest.approx(1.96 * np.sqrt(bound * (1 - bound) / 50))
    assert wilson(1.0, 10)[1] == 1.0 and wilson(0.0, 10)[0] == 0.0


def test_a_score_leaves_out_what_had_no_verdict():
    groups = [group([1], [2]), group([1], [2, 3], stop_reason="length"), group([1], [2])]
    missing = Verdict(float("nan"), {}, {}, no_verdict="judge down")
    score = summarize(groups, [[Verdict(1.0, {}, {})], [Verdict(0.0, {}, {})], [missing]])
    assert (score.score, score.count, score.no_verdict) == (0.5, 2, 1)
    assert score.truncated == pytest.approx(1 / 3) and score.length == pytest.approx(4 / 3)
    assert summarize(groups[:1], [[missing]]).score is None
    penalty = summarize(groups[:2], [[Verdict(1.0)], [Verdict(-1.0)]])  # of a broken format
    assert penalty.score == 0.5 and 0 < penalty.low < 0.5 < penalty.high < 1


def test_seeds_hang_on_all_their_parts_and_on_nothing_else():
    assert derive(0, "if_rl", 3, "rollout") == derive(0, "if_rl", 3, "rollout")
    seeds = [derive(seed, stage, step) for seed in (0, 1) for stage in ("a", "b") for step in range(50)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**31 for seed in seeds)
