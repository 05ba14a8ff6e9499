"""All stages of the full tiny cascade, a step or two of a few rows each. For tests; it learns nothing."""

from ml_collections import ConfigDict

from configs import full_tiny_cascade


def get_config() -> ConfigDict:
    config = full_tiny_cascade.get_config()
    config.name = "full_micro_cascade"
    config.buckets = (128,)  # so that a program serves all prompts
    for stage in config.stages.values():
        stage.steps = 2 if stage.kind == "sft" else 1
        stage.sft.rows = 8
        stage.rl.update({"prompts": len(stage.domains), "samples": 2, "max_draws": 1})
        stage.distill.update({"prompts": len(stage.domains), "samples": 1})
    for domain in config.domains.values():
        del domain.test  # validation rows choose the teachers
        domain.train.rows = 16
        domain.validation.rows = 2
    config.evaluation.update({"prompts": 2, "batch": 2, "transcripts": 1})
    return config
