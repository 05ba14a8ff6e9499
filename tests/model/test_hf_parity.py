"""The same weights in Hugging Face transformers and here give the same logits."""

import re

import jax
import numpy as np
import pytest
import torch
import transformers

from cascade_jax.config import ModelConfig
from cascade_jax.model import apply

IDS = np.random.default_rng(0).integers(0, 97, (2, 21)).astype(np.int32)
ATTENTION = {"vocab_size": 97, "heads": 4, "kv_heads": 2, "head_dim": 24, "width": 64}
HF_ATTENTION = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}


@torch.no_grad()
def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that every part matters, and dt above the floor that HF's prefill alone applies."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("inv_freq"):
            continue
        if "norm" in name:
            weight.copy_(1 + 0.2 * noise)
        elif name.endswith("A_log"):
            weight.copy_(noise.abs())
        elif name.endswith("dt_bias"):
            weight.copy_(noise - 2)
        elif name.endswith(("bias", ".D")):
            weight.copy_(0.3 * noise)
        else:
            weight.copy_(noise / weight.shape[-1] ** 0.5)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return model.eval()


def check(config: ModelConfig, model: torch.nn.Module, params: dict) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.shape, b.shape), params, apply.abstract(config))
    with torch.no_grad():
        want = model(torch.tensor(IDS, dtype=torch.long)).logits.numpy()
    run = jax.jit(lambda params: apply.logits(config, params, apply.hidden(config, params, IDS)[0]))
    assert want.std() > 0.3
    np.testing.assert_allclose(run(params), want, atol=1e-4)


def arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name.removeprefix("model."): value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2)])
def test_nemotron_h(groups, top_groups):
    hf = transformers.NemotronHConfig(
        **{**HF_ATTENTION, "rope_parameters": None},
        hybrid_override_pattern="ME*-M",
        mamba_num_heads=8,
        mamba_head_dim=24,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=8,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        moe_shared_expert_intermediate_size=96,
        routed_scaling_factor=2.5,
        n_group=groups,
        topk_group=top_groups,
    )
    config = ModelConfig(
        **ATTENTION,
        pattern="ME*-M",
        mamba_heads=8,
        mamba_head_dim=24,
        mamba_groups=2,
        state=16,
        chunk=8,
        experts=8,
        experts_per_token=3,
        expert_width=48,
        shared_expert_width=96,
        routed_scale=2.5,
        router_groups=groups,
        router_top_groups=top_groups,
        mlp_width=80,
    )
    model = randomised(transformers.NemotronHForCausalLM(hf))
    w = arrays(model)
    mixers = {
        "*": lambda at: {f"{n}_proj": w[f"{at}{n}_proj.weight"].T for n in "qkvo"},
        "-": lambda at: {n: w[f"{at}{n}_proj.weight"].T for n in ("up", "down")},
        "E": lambda at: {
            "router": w[at + "gate.weight"].T,
            "router_bias": w[at + "gate.e_score_correction_bias"],
            "up": w[at + "experts.up_proj"].swapaxes(1, 2),
            "down": w[at + "experts.down_proj"].swapaxes(1, 2),
            "shared": {n: w[f"{at}shared_experts.{n}_proj.weight"].T for n in ("up", "down")},
        },
        "M": lambda at: {
            **dict(
                zip(
                    ("z_proj", "x_proj", "B_proj", "C_proj", "dt_proj"),
                    np.split(w[at + "in_proj.weight"].T, [192, 384, 416, 448], axis=1),
                    strict=True,
                )
            ),
            "conv_weight": w[at + "conv1d.weight"][:, 0].T,
            "conv_bias": w[at + "conv1d.bias"],
            **{n: w[at + n] for n in ("A_log", "D", "dt_bias")},
            "norm": w[at + "norm.weight"],
            "out_proj": w[at + "out_proj.weight"].T,
        },
    }
    layers = {
        str(i): {"norm": w[f"layers.{i}.norm.weight"], "mixer": mixers[letter](f"layers.{i}.mixer.")}
        for i, letter in enumerate(config.pattern)
    }
    params = {
        "embedding": w["embeddings.weight"],
        "layers": layers,
        "final_norm": w["norm_f.weight"],
        "head": w["lm_head.weight"].T,
    }
    check(config, model, params)


def transformer_params(config: ModelConfig, w: dict[str, np.ndarray]) -> dict:
    """Llama and Qwen3 names: every block is two of our layers."""
    layers = {}
    for i in range(len(config.pattern) // 2):
        at = f"layers.{i}."
        attention = {f"{n}_proj": w[f"{at}self_attn.{n}_proj.weight"].T for n in "qkvo"}
        extras = [n for n in w if re.fullmatch(at + r"self_attn\.(\w_norm\.weight|\w_proj\.bias)", n)]
        for name in extras:
            _, _, _, part, kind = name.split(".")
            attention[part if kind == "weight" else part[0] + "_bias"] = w[name]
        layers[str(2 * i)] = {"norm": w[at + "input_layernorm.weight"], "mixer": attention}
        if config.pattern[1] == "-":
            mixer = {n: w[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up", "down")}
        else:
            gate, up = np.split(w[at + "mlp.experts.gate_up_proj"].swapaxes(1, 2), 2, axis=2)
            down = w[at + "mlp.experts.down_proj"].swapaxes(1, 2)
            mixer = {"router": w[at + "mlp.gate.weight"].T, "gate": gate, "up": up, "down": down}
        layers[str(2 * i + 1)] = {"norm": w[at + "post_attention_layernorm.weight"], "mixer": mixer}
    params = {"embedding": w["embed_tokens.weight"], "layers": layers, "final_norm": w["norm.weight"]}
    return params if config.tied_embeddings else {**params, "head": w["lm_head.weight"].T}


def test_qwen3():
    hf = transformers.Qwen3Config(**HF_ATTENTION, num_hidden_layers=2, tie_word_embeddings=True, rms_norm_eps=1e-6)
    config = ModelConfig(
        **ATTENTION,
        pattern="*-" * 2,
        norm_eps=1e-6,
        tied_embeddings=True,
        rope_theta=1000.0,
        qk_norm=True,
        mlp_width=80,
        activation="swiglu",
    )
    model = randomised(transformers.Qwen3ForCausalLM(hf))
    check(config, model, transformer_params(config, arrays(model)))


def test_qwen3_moe():
    hf = transformers.Qwen3MoeConfig(
        **HF_ATTENTION,
        num_hidden_layers=2,
        rms_norm_eps=1e-6,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        decoder_sparse_step=1,
    )
    config = ModelConfig(
        **ATTENTION,
        pattern="*E" * 2,
        norm_eps=1e-6,
        rope_theta=1000.0,
        qk_norm=True,
        experts=8,
        experts_per_token=3,
        expert_width=48,
        router="softmax",
        activation="swiglu",
    )
    model = randomised(transformers.Qwen3MoeForCausalLM(hf))
    check(config, model, transformer_params(config, arrays(model)))


@pytest.mark.parametrize("bias", [False, True])
def test_llama(bias):
    hf = transformers.LlamaConfig(**HF_ATTENTION, num_hidden_layers=2, rms_norm_eps=1e-5, attention_bias=bias)
    config = ModelConfig(
        **ATTENTION,
        pattern="*-" * 2,
        rope_theta=1000.0,
        attention_bias=bias,
        mlp_width=80,
        activation="swiglu",
    )
    model = randomised(transformers.LlamaForCausalLM(hf))
    check(config, model, transformer_params(config, arrays(model)))
