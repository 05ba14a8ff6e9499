"""A short stage of adapters on top of a Hugging Face folder, and exported. For tests: --config.checkpoint=FOLDER."""

from ml_collections import ConfigDict

from tests.runs import micro_cascade


def get_config() -> ConfigDict:
    config = micro_cascade.get_config()
    sft = config.stages.sft.to_dict()
    config.name = "from_folder"
    config.model = ""
    config.order = ("sft",)
    del config.stages
    config.stages = ConfigDict({"sft": {**sft, "steps": 2, "export_hf": True, "lora": {"rank": 2}}})
    return config
