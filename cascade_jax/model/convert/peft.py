"""Adapters as a folder that `peft` loads on the Hugging Face model that they belong to."""

import json
from pathlib import Path

import numpy as np

from cascade_jax.config import ModelConfig
from cascade_jax.folder import replaced
from cascade_jax.model import lora
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.files import write_file
from cascade_jax.model.convert.names import tensors
from cascade_jax.model.linear import LowRank
from cascade_jax.types import Params


def save_adapter(path: str | Path, config: ModelConfig, params: Params, *, base_model: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors (float32); `base_model` names what they were trained on.

    Weights that share a tensor there (Mamba's in_proj) become one adapter of the sum of their ranks, whose b is block
    diagonal: the same function. CheckpointError for adapters on routed experts, whose layout in PEFT hangs on the
    version of transformers, and on Mamba's out_proj, which PEFT refuses because fused kernels bypass it.
    """
    adapters = lora.adapters(params)
    refused = [weight for weight, adapter in adapters.items() if adapter.base.ndim == 3 or weight.endswith("out_proj")]
    if refused:
        raise CheckpointError(
            f"PEFT holds no adapters on routed experts and on Mamba's out_proj, and there are {len(refused)} such "
            f"({refused[0]}, ...); use the merged weights, or leave experts and mamba_out out of lora.targets."
        )
    arrays: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}  # by the last part of a module's name, which is how PEFT is told where adapters go
    for tensor in tensors(config):
        parts = [adapters[part.weight] for part in tensor.parts if part.weight in adapters]
        if parts:
            module = tensor.name.removesuffix(".weight")
            a, b = _joined(parts)
            arrays[f"base_model.model.{module}.lora_A.weight"] = a
            arrays[f"base_model.model.{module}.lora_B.weight"] = b
            ranks[module.split(".")[-1]] = len(a)
    scale, rank = next(iter(adapters.values())).scale, min(ranks.values())
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model or None,
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(ranks),
        "rank_pattern": {name: wider for name, wider in ranks.items() if wider != rank},
        "alpha_pattern": {name: scale * wider for name, wider in ranks.items() if wider != rank},
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    with replaced(Path(path)) as fresh:
        entries = {name: ("F32", array.shape) for name, array in arrays.items()}
        write_file(fresh / "adapter_model.safetensors", entries, lambda name: [arrays[name].tobytes()])
        (fresh / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _joined(parts: list[LowRank]) -> tuple[np.ndarray, np.ndarray]:
    """(A (ranks, in), B (outs, ranks)) of weights whose outputs lie one after the other in one tensor."""
    a = np.concatenate([np.asarray(part.a, np.float32).T for part in parts])
    b = np.zeros((sum(part.b.shape[1] for part in parts), len(a)), np.float32)
    row = column = 0
    for part in parts:
        rank, out = part.b.shape
        b[row : row + out, column : column + rank] = np.asarray(part.b, np.float32).T
        row, column = row + out, column + rank
    return a, b
