"""The control of the tiny cascade: the same SFT and IF-RL, but rewards are shuffled. It must not improve.

    python -m launch.run --config=configs/tiny_control.py --workdir=runs/control

Hardware: two CPU cores. Time: about five minutes. Expect: `instruction` after if_rl not above sft.
"""

from ml_collections import ConfigDict

from configs import tiny_cascade


def get_config() -> ConfigDict:
    config = tiny_cascade.get_config()
    stages = config.stages.to_dict()
    stages["if_rl"]["rl"]["shuffle_rewards"] = True
    config.name = "tiny_control"
    config.order = ("sft", "if_rl")
    config.stages = {name: stages[name] for name in config.order}
    return config
