"""RL on Qwen3-30B-A3B, a mixture of experts, on one machine of eight GPUs: the stages of configs/qwen3_0_6b.py.

    python -m launch.run --config=configs/qwen3_30b_a3b.py --workdir=runs/qwen3_30b_a3b \\
        --config.checkpoint=/path/of/Qwen3-30B-A3B
    (two machines: sbatch --nodes=2 launch/slurm.sbatch --config=... --workdir=... --config.mesh.fsdp=2)

Hardware: eight H200. Weights, moments and gradients take 16 bytes a weight: 61 GB on each GPU, of 141. On eight H100 of
80 GB train adapters: --config.stages.if_rl.lora.rank=32, and the same for math_rl and mopd. Time: not measured.
Expect and data: as there. The weights for vLLM are then in runs/qwen3_30b_a3b/stages/mopd/hf.
"""

from ml_collections import ConfigDict

from configs import qwen3_0_6b


def get_config() -> ConfigDict:
    config = qwen3_0_6b.get_config()
    config.name = "qwen3_30b_a3b"
    config.checkpoint = "checkpoints/Qwen3-30B-A3B"
    config.mesh.fsdp, config.mesh.expert = 1, 8
    for stage in config.stages.values():
        stage.micro_batches = 32  # one packed row at a time on each GPU
        stage.optimizer.learning_rate = 1e-6
    return config
