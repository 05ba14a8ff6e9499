"""SFT on whole episodes, RL and distillation in an environment of several turns. For tests; it learns nothing.

The environment is made up here and put into the table, as a user would; `broken` makes it fail from that episode on.
"""

import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, build
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.rollout.environment import Observation, Opening
from cascade_jax.types import Row, Verdict
from tests.runs import micro_cascade

SAID = ("no, less", "no, more")


class Chatter:
    """Answers with a tool's message; pays by chance, so that any model has good and bad tries."""

    resources = ("sandbox",)

    def __init__(self, *, turns: int = 3, broken: bool = False) -> None:
        self.turns, self.broken = turns, broken

    def episode(self, row: Row, *, seed: int) -> "Talk":
        return Talk(self, row, seed)


class Talk:
    def __init__(self, of: Chatter, row: Row, seed: int) -> None:
        self.of, self.row, self.seed, self.heard = of, row, seed, 0

    async def start(self) -> Opening:
        if self.of.broken:
            raise OSError("the sandbox is gone")
        return Opening(self.row.messages)

    async def step(self, reply) -> Observation:
        self.heard += 1
        if self.heard == 2:  # all episodes end together: few shapes of batches, so few programs to compile
            return Observation(done=True)
        return Observation(({"role": "tool", "content": SAID[len(reply.content) % 2], "tool_call_id": ""},))

    async def verdict(self, trajectory) -> Verdict:
        return Verdict(float(self.seed % 2))

    async def close(self) -> None:
        """Nothing is held."""


def write_rows(path: Path) -> None:
    """Rows of the kind math, whose verifier steps back behind the environment of that name here."""
    with path.open("w") as file:
        for number in range(16):
            demonstration = [
                {"role": "assistant", "content": str(number + 1)},
                {"role": "tool", "content": SAID[0], "tool_call_id": ""},
                {"role": "assistant", "content": str(number)},
            ]
            question = f"Name {number}."
            record = {"question": question, "expected_answer": str(number), "demonstration": demonstration}
            file.write(json.dumps({"kind": "math", **record}) + "\n")


def get_config(only: str = "") -> ConfigDict:
    """only: the one stage of the run, e.g. `--config=tests/runs/episode_cascade.py:rl`."""
    ENVIRONMENTS["math"] = Chatter
    config = micro_cascade.get_config()
    stages = {name: stage.to_dict() for name, stage in config.stages.items()}
    sampling = {**stages["if_rl"]["sampling"], "max_tokens": 8}
    sft = {**stages["sft"], "steps": 40, "domains": {"talk": 1.0}, "length": 192, "checkpoint_every": 20}
    sft["optimizer"] = {**sft["optimizer"], "learning_rate": 1e-2, "warmup_steps": 5}  # enough to end its turns
    rl = {
        **stages["if_rl"],
        "steps": 2,
        "domains": {"talk": 1.0},
        "length": 192,
        "sampling": sampling,
        "micro_batches": 1,
    }
    rl["rl"] = {**rl["rl"], "overlong": "none", "dynamic_filter": False, "curriculum": None}
    mopd = {**stages["mopd"], "steps": 2, "domains": {"talk": 1.0}, "length": 192, "sampling": sampling}
    mopd["distill"] = {"prompts": 4, "samples": 2, "teachers": {"talk": "sft"}}
    stages = {"sft": sft, "rl": rl, "mopd": mopd}
    config.order = (only,) if only else tuple(stages)
    config.stages = {name: stages[name] for name in config.order}
    source = {"kind": "jsonl", "path": "the test gives it", "rows": 0, "task": ""}
    talk = {
        "train": source,
        "validation": source,
        "thinking": False,
        "settings": {"turns": 3, "broken": False},
    }
    config.domains = {"talk": talk}
    config.buckets = (128,)
    config.evaluation.prompts = 4
    config.evaluation.sampling.max_tokens = 8
    return config


def built(checkpoint: Path, rows: Path, **settings: Any) -> CascadeConfig:
    """The checked config for `run_cascade` in this process; settings of the environment."""
    config = get_config()
    config.model, config.checkpoint = "", str(checkpoint)
    for split in ("train", "validation"):
        config.domains.talk[split].path = str(rows)
    config.domains.talk.settings.update(settings)
    return build(CascadeConfig, config.to_dict())
