"""Tiny networks of every family in Hugging Face transformers: what ours is compared with."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)  # on matrices this small threads only wait for each other: forty times as long with two

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not hidden_size / heads
    "intermediate_size": 40,
    "max_position_embeddings": 128,
    "eos_token_id": None,  # nothing stops early
}
NEMOTRON = {
    **SIZES,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,  # 8 * 12 is not expand * hidden_size
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 48,
    "routed_scaling_factor": 2.5,
}
ROTARY = {**SIZES, "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

# name -> model_type, dtype of the files, what the config says beyond the defaults of transformers
NETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nemotron": ("nemotron_h", "float32", {**NEMOTRON, "hybrid_override_pattern": "ME*-"}),
    "nemotron-tied": (
        "nemotron_h",
        "bfloat16",
        {
            **NEMOTRON,
            "hybrid_override_pattern": "*ME",
            "tie_word_embeddings": True,
            "n_groups": 4,
            "n_group": 4,
            "topk_group": 2,
            "layer_norm_epsilon": 1e-3,
        },
    ),
    "nemotron-latent": (
        "nemotron_h",
        "float32",
        {**NEMOTRON, "hybrid_override_pattern": "E*-", "moe_latent_size": 20, "norm_topk_prob": False},
    ),
    "qwen3": ("qwen3", "float32", {**ROTARY, "num_hidden_layers": 1, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "qwen3_moe",
        "float32",
        {**ROTARY, **MOE, "num_hidden_layers": 2, "mlp_only_layers": [0], "norm_topk_prob": False},
    ),
    "qwen3-moe-normed": (
        "qwen3_moe",
        "bfloat16",
        {**ROTARY, **MOE, "num_hidden_layers": 2, "decoder_sparse_step": 2, "norm_topk_prob": True},
    ),
    "llama": ("llama", "float32", {**ROTARY, "num_hidden_layers": 2, "attention_bias": True, "rms_norm_eps": 1e-5}),
}
FLOAT32_ROUTER = ("gate.weight", "e_score_correction_bias")


def write(name: str, folder: Path) -> Path:
    """The network of that name with random weights, written by transformers."""
    model_type, dtype, values = NETS[name]
    config = transformers.AutoConfig.for_model(model_type, **copy.deepcopy(values))
    model = randomise(transformers.AutoModelForCausalLM.from_config(config))
    for weight_name, weight in model.named_parameters():
        if not weight_name.endswith(FLOAT32_ROUTER):
            weight.data = weight.data.to(getattr(torch, dtype))
    if config.tie_word_embeddings:
        model.lm_head.weight.data = model.get_input_embeddings().weight.data.clone()
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def randomise(model: Any) -> Any:
    """Weights so large that every part matters, biases and norms too, and that greedy text does not end in a loop."""
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
            plain = name.endswith(("embeddings.weight", "embed_tokens.weight", "lm_head.weight", "gate.weight"))
            weight.copy_((1 if plain else 2) * noise / weight.shape[-1] ** 0.5)
    return model


def load(folder: Path) -> Any:
    """The network of the folder in float32, complete and with nothing left over.

    Two things of NemotronH in transformers 5.24 are undone: dt is kept above time_step_min in rows, though neither in
    single tokens nor in training; and tie_word_embeddings is ignored, the head has a tensor of its own.
    """
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    if model.config.tie_word_embeddings:
        assert torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
        model.lm_head.weight = model.get_input_embeddings().weight
    return model.eval()


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids, dtype=torch.long)).logits.numpy()


def greedy(model: Any, ids: np.ndarray, tokens: int) -> np.ndarray:
    """The `tokens` most likely ids after each row."""
    prompt = torch.tensor(ids, dtype=torch.long)
    everything = torch.ones_like(prompt)  # else id 0 would count as padding
    out = model.generate(prompt, attention_mask=everything, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[:, ids.shape[1] :].numpy()


def gradients(model: Any, ids: np.ndarray, folder: Path) -> Path:
    """Turns the weights into the gradients of the mean log-prob of the next id, and writes them down as weights."""
    tokens = torch.tensor(ids, dtype=torch.long)
    predicted = model(tokens).logits[:, :-1].flatten(0, 1)
    (-torch.nn.functional.cross_entropy(predicted, tokens[:, 1:].flatten())).backward()
    for weight in model.parameters():
        weight.data = weight.grad
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()  # it takes part in a choice alone
    if model.config.tie_word_embeddings:
        model._tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}
    model.save_pretrained(folder)
    return folder
