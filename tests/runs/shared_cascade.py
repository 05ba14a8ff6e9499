"""One stage of each kind, a few steps of a few rows on a mesh of eight devices. For tests: processes that share it."""

from ml_collections import ConfigDict

from tests.runs import micro_cascade

ORDER = ("sft", "if_rl", "mopd")
MESH = {"data": 2, "fsdp": 2, "expert": 2}


def get_config() -> ConfigDict:
    config = micro_cascade.get_config()
    stages = {name: config.stages[name].to_dict() for name in ORDER}
    domains = {"instruction": 1.0, "chat": 1.0}
    sft = {**stages["sft"], "steps": 4, "domains": domains, "sft": {"rows": 8, "balance_coef": 1e-4}}
    if_rl = {**stages["if_rl"], "steps": 3, "micro_batches": 1, "domains": domains}
    if_rl["rl"] = {**if_rl["rl"], "prompts": 8, "samples": 2, "curriculum": None}
    mopd = {**stages["mopd"], "steps": 2, "domains": domains}
    mopd |= {"lora": {"rank": 2}, "export_hf": True}
    mopd["distill"] = {"prompts": 4, "samples": 2, "teachers": {"instruction": "best", "chat": "sft"}}
    config.name = "shared_cascade"
    config.order = ORDER
    del config.stages
    config.stages = ConfigDict(dict(zip(ORDER, (sft, if_rl, mopd), strict=True)))
    config.stages.sft.optimizer.update({"learning_rate": 0.03, "warmup_steps": 0})  # it learns to end an answer
    config.stages.if_rl.rl.kl_coef = 0.05  # so that groups without signal train too
    config.stages.if_rl.rl.overlong = "penalty"  # for most of what a network without skill writes
    for stage in ORDER:
        config.stages[stage].checkpoint_every = 1
        config.stages[stage].sampling.max_tokens = 12
    config.evaluation.sampling.max_tokens = 12
    config.evaluation.samples = 2  # 16 rows, as in training: one program samples for all
    config.domains = {name: config.domains[name].to_dict() for name in domains}
    for domain in config.domains.values():
        del domain.test  # validation rows choose the teachers
    config.mesh = MESH
    return config
