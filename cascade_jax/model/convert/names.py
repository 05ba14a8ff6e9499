"""Which tensor of a Hugging Face checkpoint holds which weight: one table per family, read in both directions.

A table maps a weight of ours to the tensor's name. {i} is the block, {e} the expert. Weights that share a name are the
tensor's rows, in the order of the table. Matrices are (out, in) in files and (in, out) here.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cascade_jax.config import ModelConfig
from cascade_jax.leaves import by_path
from cascade_jax.model import apply
from cascade_jax.model.convert.error import CheckpointError

HEAD = "lm_head.weight"
_MIXER = "backbone.layers.{i}.mixer"
_ATTENTION = {
    "mixer/q_proj": "q_proj.weight",
    "mixer/k_proj": "k_proj.weight",
    "mixer/v_proj": "v_proj.weight",
    "mixer/o_proj": "o_proj.weight",
    "mixer/q_bias": "q_proj.bias",
    "mixer/k_bias": "k_proj.bias",
    "mixer/v_bias": "v_proj.bias",
    "mixer/o_bias": "o_proj.bias",
    "mixer/q_norm": "q_norm.weight",
    "mixer/k_norm": "k_norm.weight",
}
_MLP = {"gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight"}


def _under(prefix: str, names: Mapping[str, str], *, ours: str = "") -> dict[str, str]:
    return {ours + weight: f"{prefix}.{name}" for weight, name in names.items()}


_NEMOTRON_H = {
    "": {"embedding": "backbone.embeddings.weight", "final_norm": "backbone.norm_f.weight", "head": HEAD},
    "M": {
        "norm": "backbone.layers.{i}.norm.weight",
        **dict.fromkeys((f"mixer/{part}_proj" for part in ("z", "x", "B", "C", "dt")), f"{_MIXER}.in_proj.weight"),
        "mixer/conv_weight": f"{_MIXER}.conv1d.weight",
        "mixer/conv_bias": f"{_MIXER}.conv1d.bias",
        "mixer/A_log": f"{_MIXER}.A_log",
        "mixer/D": f"{_MIXER}.D",
        "mixer/dt_bias": f"{_MIXER}.dt_bias",
        "mixer/norm": f"{_MIXER}.norm.weight",
        "mixer/out_proj": f"{_MIXER}.out_proj.weight",
    },
    "*": {"norm": "backbone.layers.{i}.norm.weight", **_under(_MIXER, _ATTENTION)},
    "E": {
        "norm": "backbone.layers.{i}.norm.weight",
        "mixer/router": f"{_MIXER}.gate.weight",
        "mixer/router_bias": f"{_MIXER}.gate.e_score_correction_bias",
        "mixer/latent_in": f"{_MIXER}.fc1_latent_proj.weight",
        "mixer/latent_out": f"{_MIXER}.fc2_latent_proj.weight",
        **_under(f"{_MIXER}.experts.{{e}}", _MLP, ours="mixer/"),
        **_under(f"{_MIXER}.shared_experts", _MLP, ours="mixer/shared/"),
    },
    "-": {"norm": "backbone.layers.{i}.norm.weight", **_under(_MIXER, _MLP, ours="mixer/")},
}
_TRANSFORMER = {  # Llama, Qwen3 and Qwen3-MoE: a block is two layers of ours
    "": {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": HEAD},
    "*": {
        "norm": "model.layers.{i}.input_layernorm.weight",
        **_under("model.layers.{i}.self_attn", _ATTENTION),
    },
    "-": {
        "norm": "model.layers.{i}.post_attention_layernorm.weight",
        **_under("model.layers.{i}.mlp", _MLP, ours="mixer/"),
    },
    "E": {
        "norm": "model.layers.{i}.post_attention_layernorm.weight",
        "mixer/router": "model.layers.{i}.mlp.gate.weight",
        **_under("model.layers.{i}.mlp.experts.{e}", _MLP, ours="mixer/"),
    },
}
TABLES = {"nemotron_h": _NEMOTRON_H, "qwen3_moe": _TRANSFORMER, "qwen3": _TRANSFORMER, "llama": _TRANSFORMER}

# Spellings of other tools: merge scripts leave `model.` in Nemotron-H, and base models are saved without their prefix.
_SPELLINGS = {
    "nemotron_h": ((r"^model\.", "backbone."), (r"^backbone\.embedding\.", "backbone.embeddings.")),
    "transformer": ((r"^(?=layers\.|embed_tokens\.|norm\.)", "model."),),
}


class Part(NamedTuple):
    """The rows of a tensor that one weight gives: all of it, or of its first dimension the entry `expert`."""

    weight: str
    expert: int | None
    rows: int


class Tensor(NamedTuple):
    """One tensor of a file; `parts` lie below each other in its first dimension."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def family(config: ModelConfig) -> str:
    """The Hugging Face model_type that holds such a network; CheckpointError where none does."""
    pairs = len(config.pattern) % 2 == 0 and set(config.pattern[::2]) == {"*"} and set(config.pattern[1::2]) <= {*"E-"}
    routed = "E" in config.pattern
    if pairs and config.activation == "swiglu" and config.rope_theta is not None:
        if not routed:
            return "qwen3" if config.qk_norm else "llama"
        plain = config.router == "softmax" and not config.shared_expert_width and not config.latent_width
        if plain and config.qk_norm and config.routed_scale == 1 and config.router_groups == 1:
            return "qwen3_moe"
    hybrid = config.activation == "relu2" and config.rope_theta is None and not config.qk_norm
    if hybrid and (not routed or (config.router == "sigmoid" and config.shared_expert_width)):
        return "nemotron_h"
    raise CheckpointError(
        f"no Hugging Face model holds this network (pattern {config.pattern!r}, activation {config.activation!r}, "
        f"router {config.router!r}, rope_theta {config.rope_theta}); allowed are {', '.join(TABLES)}."
    )


def tensors(config: ModelConfig) -> list[Tensor]:
    """All tensors of a checkpoint of this network, in the order of its layers."""
    kind = family(config)
    table, layers_per_block = TABLES[kind], 1 if kind == "nemotron_h" else 2
    config = dataclasses.replace(config, expert_padding=0)  # files hold none
    shapes = {path: leaf.shape for path, leaf in by_path(apply.abstract(config)).items()}
    parts: dict[str, list[Part]] = {}

    def add(weight: str, name: str, block: int) -> None:
        for expert in range(config.experts) if "{e}" in name else (None,):
            rows = file_shape(weight, shapes[weight], expert)[0]
            parts.setdefault(name.format(i=block, e=expert), []).append(Part(weight, expert, rows))

    for weight in ("embedding", "final_norm", "head"):
        if weight in shapes:
            add(weight, table[""][weight], 0)
    for number, letter in enumerate(config.pattern):
        for weight, name in table[letter].items():
            if f"layers/{number}/{weight}" in shapes:
                add(f"layers/{number}/{weight}", name, number // layers_per_block)
    found = []
    for name, members in parts.items():
        first = members[0]
        others = file_shape(first.weight, shapes[first.weight], first.expert)[1:]
        found.append(Tensor(name, (sum(part.rows for part in members), *others), tuple(members)))
    return found


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """name -> shape of the tensors that a Hugging Face checkpoint of this network holds."""
    shapes = {tensor.name: tensor.shape for tensor in tensors(config)}
    return {**shapes, HEAD: (config.vocab_size, config.width)} if ships_tied_head(config) else shapes


def ships_tied_head(config: ModelConfig) -> bool:
    """Whether a head that is tied stands in the file all the same: transformers never ties that of nemotron_h."""
    return config.tied_embeddings and family(config) == "nemotron_h"


def canonical(name: str, kind: str) -> str:
    """The name in our tables of a tensor that other tools may have spelled in another way."""
    for pattern, replacement in _SPELLINGS["nemotron_h" if kind == "nemotron_h" else "transformer"]:
        name = re.sub(pattern, replacement, name)
    return name


def file_shape(weight: str, shape: tuple[int, ...], expert: int | None) -> tuple[int, ...]:
    """The shape in a file of a weight, or of one expert's entry of it."""
    shape = shape if expert is None else shape[1:]
    if _is_conv(weight):
        return (shape[1], 1, shape[0])
    return shape if weight == "embedding" else shape[::-1]


def to_file(weight: str, array: np.ndarray) -> np.ndarray:
    """One part as a file holds it; the inverse of `from_file`."""
    if _is_conv(weight):
        return array.T[:, None]
    return array if weight == "embedding" else array.T


def from_file(weight: str, array: np.ndarray) -> np.ndarray:
    """Of a part in a file, (out, in), the weight: (in, out); convolutions (channels, 1, K) to (K, channels)."""
    if _is_conv(weight):
        return array[:, 0].T
    return array if weight == "embedding" else array.T


def _is_conv(weight: str) -> bool:
    return weight.endswith("conv_weight")
