"""A whole small cascade on a laptop: SFT -> IF-RL -> multi-domain RL -> MOPD -> RLHF.

    python -m launch.run --config=configs/tiny_cascade.py --workdir=runs/tiny        (or: make demo)

Hardware: two CPU cores, 3 GiB of memory. Time: eight to eleven minutes, of which two to four compile.
Expect (held-out rows, sampled at temperature 1): about 50 % in every domain after sft; 95 to 100 % for `instruction`
after if_rl; 76 to 99 % for the four domains of multi_rl, while `chat` or `instruction` drops by 5 to 50 points; mopd
wins back more than nine tenths of the drops; 95 % for `chat` after rlhf, and every domain far above sft.
"""

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, complete

DOMAINS = {
    "instruction": "instruction_following",
    "choice": "mcqa",
    "tools": "tool_call",
    "structured": "structured_output",
    "math": "math",
    "chat": "preference",
}
PROMPT, ANSWER, LENGTH = 48, 24, 128  # tokens: the longest prompt, the longest answer, a packed row


def domain(task: str) -> dict:
    def source(rows: int) -> dict:
        # Comparing and subtracting numbers takes a model of this size more steps than a laptop has patience for.
        difficulty = (0,) if task in ("mcqa", "math") else (0, 1)
        return {"kind": "generated", "task": task, "rows": rows, "difficulty": difficulty}

    return {"train": source(2000), "validation": source(384), "test": source(384), "thinking": False}


def sampling() -> dict:
    return {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": ANSWER}


def rl_optimizer(learning_rate: float, warmup_steps: int = 5) -> dict:
    return {
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "b1": 0.9,
        "b2": 0.95,
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "freeze_router": True,
        "router_bias_rate": 1e-3,
    }


def rl(domains: dict[str, float], steps: int, **settings) -> dict:
    return {
        "kind": "rl",
        "steps": steps,
        "domains": domains,
        "length": LENGTH,
        "optimizer": rl_optimizer(1e-3),
        "sampling": sampling(),
        "rl": {"prompts": 16, "samples": 8, "band": (0.5, 2.0), "shuffle_rewards": False, "kl_coef": 0.0, **settings},
    }


def get_config() -> ConfigDict:
    every = {name: 1.0 for name in DOMAINS}
    stages = {
        "sft": {
            "kind": "sft",
            "steps": 700,
            "domains": {**every, "math": 1.5},
            "length": LENGTH,
            "checkpoint_every": 50,
            "optimizer": {
                "learning_rate": 3e-3,
                "schedule": "cosine",
                "min_learning_rate": 3e-4,
                "warmup_steps": 30,
                "b2": 0.98,
                "weight_decay": 0.1,
                "router_bias_rate": 1e-3,
            },
            "sft": {"rows": 16, "balance_coef": 1e-4},
        },
        "if_rl": rl({"instruction": 1.0}, 24, dynamic_filter=True, max_draws=4, overlong="penalty"),
        "multi_rl": rl({"choice": 1.0, "tools": 1.0, "structured": 1.0, "math": 1.0}, 45, overlong="filter"),
        "mopd": {
            "kind": "distill",
            "steps": 40,
            "domains": every,
            "length": LENGTH,
            # The decay takes the noise of a step of 128 samples out of the last ones.
            "optimizer": {**rl_optimizer(5e-4, warmup_steps=10), "schedule": "cosine", "min_learning_rate": 5e-5},
            "sampling": sampling(),
            "distill": {"prompts": 32, "samples": 4, "teachers": {name: "best" for name in DOMAINS}},
        },
        "rlhf": {**rl({"chat": 1.0}, 14, kl_coef=0.03), "optimizer": rl_optimizer(5e-4)},
    }
    values = {
        "name": "tiny_cascade",
        "model": "tiny",
        "checkpoint": "",
        "tokenizer": "",
        "template": "nemotron3",
        "seed": 0,
        "buckets": (PROMPT,),
        "order": tuple(stages),
        "domains": {name: domain(task) for name, task in DOMAINS.items()},
        "stages": stages,
        "evaluation": {"prompts": 384, "samples": 1, "batch": 128, "sampling": sampling(), "transcripts": 3},
        "judge": {"url": "", "model": "rule-judge"},
    }
    return ConfigDict(complete(CascadeConfig, values))
