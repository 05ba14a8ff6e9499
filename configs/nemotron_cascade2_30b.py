"""The Nemotron-Cascade 2 recipe on Nemotron-3-Nano-30B-A3B: SFT, then eight stages of RL and distillation.

    launch/tpu_pod.sh --name=cascade --zone=ZONE --topology=v5p:4x4x4 \\
        --config=configs/nemotron_cascade2_30b.py --workdir=/shared/runs/cascade2
    (v6e: --topology=v6e:16x16 --config=configs/nemotron_cascade2_30b.py:v6e:16x16)

Hardware: planned for 64 chips of v5p (v5p-128 in Google's count), or 256 of v6e. Memory and time: not
measured on any; what their compilers say is in launch/plans. Expect: the paper's Table 1, e.g. AIME 2025 92.4,
IFBench 82.9, LiveCodeBench v6 87.2.
Besides the data a run needs three judges behind OpenAI-compatible endpoints (--config.judge.url and
--config.domains.long_context.judge.url, --config.domains.repair.judge.url), the tables of NeMo-Gym's workplace and
clones of the repositories that `swe` repairs (DATA/workplace, DATA/repositories), and a sandbox on every host.

Numbers in brackets, like (5.4), are sections of the recipe, which has them from the paper (arXiv 2603.19220), from its
model and data cards, and where those are silent from Nemotron 3 Nano; where they differ, its section 21 decides.

Data lie under DATA, a folder that all hosts see, one .jsonl file for each split named below, all rows of one kind
(`python -m launch.data validate FILE` says which, and what is wrong with a row). They come from the data sets
    nvidia/Nemotron-Cascade-2-SFT-Data          sft
    nvidia/Nemotron-Cascade-2-RL-data           instruction (IF-RL), mcqa, workplace, structured (multi-domain-RL)
        and its part SWE-RL                     swe
    nvidia/AceReason-Math                       math
    nvidia/HelpSteer3, lmarena-ai/arena-human-preference-140k   chat (their prompts)
    nvidia/Nemotron-3-Nano-RL-Training-Blend    long_context, code
    nvidia/Nemotron-Cascade-RL-SWE              repair
CHECKPOINT is the Hugging Face folder of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16.
"""

from ml_collections import ConfigDict

from cascade_jax.config import CascadeConfig, ConfigError, complete

DATA = "/shared/data"
CHECKPOINT = "/shared/checkpoints/nemotron-3-nano-30b-a3b-base"

# The mesh of each topology. Master weights and AdamW's moments take 12 bytes a weight, 380 GB, and are split by fsdp,
# expert and context; the tokens of SFT's rows of 256K by context. One mesh serves all stages.
MESHES = {
    "v5p:4x4x4": {"expert": 8, "context": 8},  # 6 of 95 GB at rest, 32K tokens of a row on a chip
    # 3 of 31 GB at rest, 8K tokens of a row on a chip. On 8x8 SFT of 256K does not fit: 89 % of memory at 8K tokens
    "v6e:16x16": {"data": 2, "expert": 4, "context": 32},
}
K = 1024
PROMPT = 32 * K  # the longest prompt: that of long-context RL (10)
ROWS = 256  # packed rows of an RL step: 10K tokens for each of 2048 samples. A part of the mesh takes one at a time

THINKING = {"swe": False}  # agentic SWE is sampled without thinking, all else with it (3)
SETTINGS = {
    "workplace": {"folder": f"{DATA}/workplace"},
    "repair": {"grading": "judge"},  # most of its instances have no image to run tests in (12)
    "swe": {"repositories": f"{DATA}/repositories", "turns": 200, "instructions": True},  # (13)
}
JUDGE = {"timeout": 600.0, "concurrency": 256}
JUDGES = {  # (10), (12); the run's own judge is the GenRM of (9)
    "long_context": {"model": "Qwen/Qwen3-235B-A22B-Instruct-2507", "wire": "chat", "max_tokens": 8192, **JUDGE},
    "repair": {"model": "openai/gpt-oss-120b", "wire": "chat", **JUDGE},
}
# What a model solves every time teaches nothing, and little of what it never solves (11, 13).
FILTERS = {"code": {"drop_solved": True}, "swe": {"drop_solved": True, "keep_unsolved": 0.1}}

# domain -> weight. Multi-domain RL (7), distillation (8.2, 22): 22 % math, 22 % IF, 30 % multi-domain, 26 % chat.
MULTI = {"mcqa": 0.55, "workplace": 0.30, "structured": 0.15}
MIX = {"math": 0.22, "instruction": 0.22, **{name: 0.30 * share for name, share in MULTI.items()}, "chat": 0.26}


def domain(name: str) -> dict:
    def source(split: str) -> dict:
        return {"kind": "jsonl", "path": f"{DATA}/{name}/{split}.jsonl"}

    return {
        "train": {**source("train"), **FILTERS.get(name, {})},
        "validation": source("validation"),
        "thinking": THINKING.get(name, True),
        "settings": SETTINGS.get(name, {}),
        "judge": JUDGES.get(name),
    }


def optimizer(learning_rate: float = 3e-6, **settings) -> dict:
    """AdamW 0.9 / 0.95; warmup, decay and clip are Nano's, and so are a frozen router and its moving bias (5.1)."""
    return {
        "learning_rate": learning_rate,
        "warmup_steps": 10,
        "b2": 0.95,
        "weight_decay": 0.0,
        "clip_norm": 1.0,
        "freeze_router": True,
        "router_bias_rate": 1e-3,
        **settings,
    }


def rl(
    parts: int, domains: dict, steps: int, answer: int, *, temperature: float = 1.0, top_p: float = 1.0, **settings
) -> dict:
    """GRPO (5): 128 prompts x 16 samples (5.4), no KL but in RLHF, and section 8's band for a drifting sampler."""
    return {
        "kind": "rl",
        "steps": steps,
        "domains": domains,
        "length": PROMPT + answer,
        "micro_batches": ROWS // parts,
        "checkpoint_every": 5,
        "optimizer": optimizer(),
        "sampling": {"temperature": temperature, "top_p": top_p, "max_tokens": answer},
        "rl": {"prompts": 128, "samples": 16, "kl_coef": 0.0, "band": (0.5, 2.0), **settings},
    }


def stages(parts: int) -> dict:
    chat = {"answer": 16 * K, "kl_coef": 0.03}  # no filter: the short cap is there to punish length (9, 21)
    return {
        "sft": {  # (4.1)
            "kind": "sft",
            "steps": 33_000,
            "domains": {"sft": 1.0},
            "length": 256 * K,
            "micro_batches": 64 // parts,
            "checkpoint_every": 250,
            "optimizer": {
                "learning_rate": 5e-5,
                "schedule": "cosine",
                "min_learning_rate": 5e-6,
                "warmup_steps": 200,
                "b2": 0.98,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
                "router_bias_rate": 1e-3,
            },
            "sft": {"rows": 64, "balance_coef": 1e-4},
        },
        # A teacher beside the main line: RLHF straight after SFT (8.2); its length is the default of section 22.
        "rlhf_teacher": {**rl(parts, {"chat": 1.0}, 100, **chat), "parent": "sft", "side_branch": True},
        "if_rl": rl(parts, {"instruction": 1.0}, 180, 48 * K, overlong="penalty", dynamic_filter=True),  # (6)
        "multi_rl": rl(parts, MULTI, 70, 48 * K, overlong="filter"),  # (7)
        "mopd": {  # (8)
            "kind": "distill",
            "steps": 52,
            "domains": MIX,
            "length": PROMPT + 96 * K,
            "micro_batches": ROWS // 4 // parts,  # a quarter of the samples
            "checkpoint_every": 5,
            "optimizer": optimizer(2e-6, warmup_steps=30, warmup_from=2e-7),
            "sampling": {"max_tokens": 96 * K},
            "distill": {
                "prompts": 128,
                "samples": 4,
                "band": (0.5, 2.0),
                "aggregate": "sample",
                # What "best" would choose by validation scores, as in the paper
                "teachers": {
                    "math": "sft",
                    "instruction": "multi_rl",
                    **{name: "multi_rl" for name in MULTI},
                    "chat": "rlhf_teacher",
                },
            },
        },
        "rlhf": rl(parts, {"chat": 1.0}, 25, **chat),  # (9)
        "long_context_rl": rl(parts, {"long_context": 1.0}, 30, 16 * K),  # 48K with the prompt, unmixed (10)
        "code_rl": rl(parts, {"code": 1.0}, 22, 116 * K, top_p=0.95, overlong="filter"),  # (11)
        "swe_agentless": rl(parts, {"repair": 1.0}, 45, 64 * K, group_floor=0.5),  # 98,304 tokens (12)
        "swe_agentic": {  # (13): 256K with the prompt
            **rl(parts, {"swe": 1.0}, 75, 224 * K, temperature=0.8, prompts=16, samples=64),
            "optimizer": optimizer(schedule="cosine", min_learning_rate=0.0),
            "export_hf": True,
        },
    }


def get_config(topology: str = "v5p:4x4x4") -> ConfigDict:
    if topology not in MESHES:
        raise ConfigError(f"there is no mesh for {topology!r} in this file; choose one of {', '.join(MESHES)}.")
    mesh = MESHES[topology]
    order = stages(mesh.get("data", 1) * mesh["expert"])
    names = ("sft", "instruction", *MULTI, "math", "chat", "long_context", "code", "repair", "swe")
    values = {
        "name": "nemotron_cascade2_30b",
        "checkpoint": CHECKPOINT,
        "repair_embeddings": True,  # the base has all-zero rows for tokens of the chat template
        "template": "nemotron3",
        "seed": 0,
        "buckets": (1 * K, 4 * K, PROMPT),
        "order": tuple(order),
        "domains": {name: domain(name) for name in names},
        "stages": order,
        # (15); the judge is a GenRM behind an OpenAI-compatible endpoint (9): --config.judge.url
        "evaluation": {"prompts": 256, "batch": 64, "sampling": {"top_p": 0.95, "max_tokens": 96 * K}},
        "judge": {"model": "nvidia/Qwen3-Nemotron-235B-A22B-GenRM", **JUDGE},
        "mesh": mesh,
    }
    return ConfigDict(complete(CascadeConfig, values))
