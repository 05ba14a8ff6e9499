"""A run on rows of the published SFT data: they teach, and nothing scores or rewards them."""

import json
from pathlib import Path

import pytest

from cascade_jax.cascade import run_cascade
from cascade_jax.config import CascadeConfig, ConfigError, build
from configs import tiny_cascade
from tests.data.published_rows import MATH, MCQA, SFT, SFT_PLAIN


@pytest.fixture
def config(start: Path, tmp_path: Path) -> dict:
    """One stage of SFT, one step, on eight conversations."""
    path = tmp_path / "sft.jsonl"
    path.write_text("".join(json.dumps({**row, "n": i}) + "\n" for row in (SFT, SFT_PLAIN) for i in range(4)))
    config = tiny_cascade.get_config().to_dict()
    source = {"kind": "jsonl", "path": str(path)}
    sft = {**config["stages"]["sft"], "steps": 1, "domains": {"talk": 1.0}, "length": 256, "sft": {"rows": 2}}
    config |= {"model": "", "checkpoint": str(start), "buckets": (256,), "order": ("sft",), "stages": {"sft": sft}}
    return config | {"domains": {"talk": {"train": source, "validation": source, "thinking": True}}}


def test_published_demonstrations_are_trained_on_and_not_scored(config: dict, tmp_path: Path):
    manifest = run_cascade(build(CascadeConfig, config), tmp_path / "run")
    assert (manifest.status, manifest.stages["sft"].evaluation) == ("finished", {})
    [line] = (tmp_path / "run" / "stages" / "sft" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["metrics"]["loss"] > 0
    assert "sft" in (tmp_path / "run" / "report.md").read_text()


def test_demonstrations_earn_no_reward_and_a_domain_has_one_kind(config: dict, tmp_path: Path):
    rl = {**tiny_cascade.get_config().stages.to_dict()["if_rl"], "domains": {"talk": 1.0}, "length": 512}
    wrong = config | {"order": ("sft", "rl"), "stages": {**config["stages"], "rl": rl}}
    with pytest.raises(ConfigError, match=r"stages\.rl is of kind rl, but talk hold demonstrations"):
        run_cascade(build(CascadeConfig, wrong), tmp_path / "rl")
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("".join(json.dumps(row) + "\n" for row in (MATH, MCQA)))
    wrong = config | {
        "domains": {"talk": {**config["domains"]["talk"], "train": {"kind": "jsonl", "path": str(mixed)}}}
    }
    with pytest.raises(ConfigError, match=r"domains\.talk holds rows of the kinds math, mcqa, sft; .* set row_kind"):
        run_cascade(build(CascadeConfig, wrong), tmp_path / "mixed")
