"""All stage kinds in a minute: the tiny cascade with a few steps of a few rows. For tests; it learns nothing."""

from pathlib import Path

from ml_collections import ConfigDict

from configs import tiny_cascade

ORDER = ("sft", "if_rl", "side", "mopd", "rlhf")
DOMAINS = ("instruction", "math", "chat")
LORA = {"rank": 2, "targets": ("attention", "mamba", "mamba_out", "mlp", "experts")}


def get_config() -> ConfigDict:
    config = tiny_cascade.get_config()
    stages = config.stages.to_dict()
    every = {name: 1.0 for name in DOMAINS}
    sft = {**stages["sft"], "steps": 5, "domains": every, "sft": {"rows": 4, "balance_coef": 1e-4}}
    if_rl = {**stages["if_rl"], "steps": 5, "micro_batches": 2}
    side = {**stages["if_rl"], "domains": {"math": 1.0}, "parent": "sft", "side_branch": True, "steps": 2}
    mopd = {**stages["mopd"], "steps": 3, "domains": every}
    mopd["distill"] = {"prompts": 4, "samples": 2, "teachers": {"instruction": "best", "math": "side", "chat": "sft"}}
    rlhf = {**stages["rlhf"], "steps": 3, "lora": LORA}
    small = {"prompts": 4, "samples": 3, "max_draws": 2}
    for stage in (if_rl, side, rlhf):
        stage["rl"] = {**stage["rl"], **small}
    if_rl["rl"]["curriculum"] = {"start": 0.9, "end": 0.1, "spread": 0.2}
    for stage in (sft, if_rl, side, mopd, rlhf):
        stage["checkpoint_every"] = 2
    config.name = "micro_cascade"
    config.order = ORDER
    config.stages = dict(zip(ORDER, (sft, if_rl, side, mopd, rlhf), strict=True))
    config.domains = {name: config.domains[name].to_dict() for name in DOMAINS}
    for domain in config.domains.values():
        for split in ("train", "validation", "test"):
            domain[split].rows = 32
    config.domains.instruction.train.kind = "jsonl"  # rows of the task, with made-up pass rates
    config.domains.instruction.train.path = str(Path(__file__).with_name("profiled.jsonl"))
    config.evaluation.prompts = 8
    config.evaluation.batch = 8
    return config
