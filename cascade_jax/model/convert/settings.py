"""Hugging Face's config.json as a ModelConfig and back."""

import math
import re
from collections.abc import Mapping
from typing import Any

from cascade_jax.config import ConfigError, ModelConfig, build
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.names import family

_COMMON = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "tied_embeddings": "tie_word_embeddings",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "attention_bias": "attention_bias",
    "mlp_width": "intermediate_size",
    "initializer_range": "initializer_range",
}
# ModelConfig field -> key of config.json, by model_type
KEYS = {
    "llama": {**_COMMON, "norm_eps": "rms_norm_eps"},
    "qwen3": {**_COMMON, "norm_eps": "rms_norm_eps"},
    "qwen3_moe": {
        **_COMMON,
        "norm_eps": "rms_norm_eps",
        "experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "norm_top_k": "norm_topk_prob",
    },
    "nemotron_h": {
        **_COMMON,
        "norm_eps": "layer_norm_epsilon",
        "mamba_heads": "mamba_num_heads",
        "mamba_head_dim": "mamba_head_dim",
        "mamba_groups": "n_groups",
        "state": "ssm_state_size",
        "conv_kernel": "conv_kernel",
        "chunk": "chunk_size",
        "experts": "n_routed_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "shared_expert_width": "moe_shared_expert_intermediate_size",
        "latent_width": "moe_latent_size",
        "router_groups": "n_group",
        "router_top_groups": "topk_group",
        "norm_top_k": "norm_topk_prob",
        "routed_scale": "routed_scaling_factor",
    },
}
# Other names under which a key may stand
SPELLINGS = {
    "layer_norm_epsilon": ("norm_eps", "rms_norm_eps"),
    "rms_norm_eps": ("norm_eps",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "chunk_size": ("mamba_chunk_size",),
    "ssm_state_size": ("mamba_d_state",),
    "time_step_limit": ("mamba_dt_limit",),
    "use_conv_bias": ("mamba_conv_bias",),
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "layers_block_type": ("layer_types",),
    "dtype": ("torch_dtype",),
}
# What transformers takes where a key is absent
DEFAULTS = {
    "tie_word_embeddings": False,
    "attention_bias": False,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "rms_norm_eps": 1e-6,
    "chunk_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": {"nemotron_h": True, "qwen3_moe": False},
    "routed_scaling_factor": 1.0,
    "moe_latent_size": None,
    "num_key_value_heads": None,
    "head_dim": {"nemotron_h": 128, "qwen3": 128, "qwen3_moe": None, "llama": None},
}
# Fields that must be there, always and where the pattern has the letter
NEEDED = {
    "": ("vocab_size", "width"),
    "M": ("mamba_heads", "mamba_head_dim", "mamba_groups", "state", "conv_kernel"),
    "E": ("experts", "experts_per_token", "expert_width", "shared_expert_width"),
    "*": ("heads",),
    "-": ("mlp_width",),
}
# Settings with the values that the network can follow; a key that is absent or null is always fine.
PLAIN = {
    "quantization_config": (),
    "use_bias": (False,),
    "mamba_proj_bias": (False,),
    "mlp_bias": (False,),
    "use_conv_bias": (True,),
    "hidden_act": ("silu",),
    "mamba_hidden_act": ("silu",),
    "mlp_hidden_act": ("relu2",),
    "n_shared_experts": (0, 1),
}
LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-"}
BLOCK_TYPES = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
ARCHITECTURES = {
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
}


def config_from_hf(values: Mapping[str, Any]) -> ModelConfig:
    """The network that a config.json describes. CheckpointError names what is unknown, missing or cannot be followed.

    The dtype of matrix products is the one that the weights are stored in, bfloat16 or else float32.
    """
    try:
        return _config(values)
    except CheckpointError as error:
        raise CheckpointError(f"config.json: {error}") from None


def _config(values: Mapping[str, Any]) -> ModelConfig:
    kind = values.get("model_type")
    if kind not in KEYS:
        raise CheckpointError(f"model_type {kind!r} is not known; allowed are {', '.join(KEYS)}.")
    faults = [
        f"{key}={values[key]!r}"
        for key, allowed in PLAIN.items()
        if values.get(key) is not None and values[key] not in allowed
    ]
    if values.get("use_sliding_window", values.get("sliding_window") is not None):
        faults.append(f"sliding_window={values.get('sliding_window')!r}")
    if faults:
        raise CheckpointError(f"the network cannot follow {', '.join(faults)}; only models without it can be read.")
    keys, pattern = KEYS[kind], _pattern(values, kind)
    needed = [field for letter in ("", *sorted(set(pattern))) for field in NEEDED[letter] if field in keys]
    missing = [keys[field] for field in needed if _get(values, keys[field]) is None]
    if missing:
        raise CheckpointError(f"it lacks {', '.join(missing)}.")
    found = {field: _value(values, key, kind) for field, key in keys.items()}
    found = {field: value for field, value in found.items() if value is not None}
    found.setdefault("kv_heads", found.get("heads", 1))
    found.setdefault("head_dim", found["width"] // found.get("heads", 1))
    if kind == "nemotron_h":  # rope_theta stands in its config.json, but there are no positions in the network
        rest = {"rope_theta": None, "activation": "relu2", "time_step_limit": _time_step_limit(values)}
    else:
        rest = {"rope_theta": _rope_theta(values), "activation": "swiglu", "qk_norm": kind != "llama"}
        rest["router"] = "softmax"
    dtype = "bfloat16" if _get(values, "dtype") == "bfloat16" else "float32"
    try:
        return build(ModelConfig, {"pattern": pattern, "dtype": dtype, **found, **rest}, "it")
    except ConfigError as error:
        theirs = re.sub(r"^it\.(\w+)", lambda match: keys.get(match[1], match[1]), str(error))
        raise CheckpointError(theirs) from None


def config_to_hf(config: ModelConfig, *, dtype: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A config.json for this network that old and new loaders read; all else comes from `source`. dtype: of weights."""
    kind = family(config)
    values = dict(source or {"model_type": kind, "architectures": [ARCHITECTURES[kind]], "torch_dtype": dtype})
    values |= {key: getattr(config, field) for field, key in KEYS[kind].items()}
    values |= {key: dtype for key in ("dtype", "torch_dtype") if key in values}
    if kind == "nemotron_h":
        # transformers from 5 on reads the list; vLLM and the code published with the models read the pattern.
        values["hybrid_override_pattern"] = config.pattern
        values["num_hidden_layers"] = len(config.pattern)
        values["layers_block_type"] = [BLOCK_TYPES[letter] for letter in config.pattern]
        values["moe_latent_size"] = config.latent_width or None
        values["mlp_hidden_act"], values["norm_eps"] = "relu2", config.norm_eps
        values.pop("time_step_limit", None)
        if config.time_step_limit is not None:
            values["time_step_limit"] = list(config.time_step_limit)
        return values
    values["num_hidden_layers"] = len(config.pattern) // 2
    values["hidden_act"] = "silu"
    if kind == "qwen3_moe":
        values["decoder_sparse_step"] = 1
        values["mlp_only_layers"] = [i for i, letter in enumerate(config.pattern[1::2]) if letter == "-"]
    if "rope_parameters" in values:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
    else:
        values["rope_theta"] = config.rope_theta
    return values


def _get(values: Mapping[str, Any], key: str) -> Any:
    return next((values[name] for name in (key, *SPELLINGS.get(key, ())) if values.get(name) is not None), None)


def _value(values: Mapping[str, Any], key: str, kind: str) -> Any:
    value, default = _get(values, key), DEFAULTS.get(key)
    if value is not None:
        return value
    return default[kind] if isinstance(default, dict) else default


def _pattern(values: Mapping[str, Any], kind: str) -> str:
    if kind == "nemotron_h":
        given, names = values.get("hybrid_override_pattern"), _get(values, "layers_block_type")
        unknown = sorted({name for name in names or () if name not in LETTERS} | {*(given or "")} - {*"ME*-"})
        if unknown:
            raise CheckpointError(f"it has layers of unknown kinds {unknown}; allowed are {', '.join(LETTERS)}.")
        listed = "".join(LETTERS[name] for name in names or ())
        if not (given or listed) or (given and listed and given != listed):
            raise CheckpointError(
                f"it has hybrid_override_pattern {given!r} and layers_block_type for {listed!r}; "
                "one of them is needed, and both must tell the same."
            )
        return given or listed
    sliding = sorted(set(values.get("layer_types") or ()) - {"full_attention"})
    if sliding:
        raise CheckpointError(f"the network cannot follow layer_types with {', '.join(sliding)}.")
    blocks = values.get("num_hidden_layers")
    if not isinstance(blocks, int) or blocks < 1:
        raise CheckpointError(f"it has num_hidden_layers {blocks!r}; a positive number is needed.")
    if kind != "qwen3_moe":
        return "*-" * blocks
    dense, step = set(values.get("mlp_only_layers") or ()), values.get("decoder_sparse_step", 1)
    return "".join("*-" if i in dense or (i + 1) % step else "*E" for i in range(blocks))


def _rope_theta(values: Mapping[str, Any]) -> float:
    """Plain rotary positions over the whole head are all that there is; anything else is refused by name."""
    scaling, parameters = values.get("rope_scaling") or {}, values.get("rope_parameters") or {}
    for key, given in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        kind = given.get("rope_type", given.get("type", "default")) if isinstance(given, Mapping) else given
        if kind not in (None, "default"):
            raise CheckpointError(
                f"the network cannot follow {key}={given!r}; only plain rotary positions can be read."
            )
    partial = parameters.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0):
        raise CheckpointError(f"the network cannot follow partial_rotary_factor={partial!r}; only 1.0 can be read.")
    return float(parameters.get("rope_theta") or values.get("rope_theta") or 10000.0)


def _time_step_limit(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """None where it limits nothing, in any of the ways in which infinity has been written."""
    given = _get(values, "time_step_limit")
    if given is None:
        return None
    low, high = (float(bound["__float__"]) if isinstance(bound, Mapping) else float(bound) for bound in given)
    return None if low == 0 and math.isinf(high) else (low, high)
