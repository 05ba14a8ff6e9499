"""Hugging Face's config.json as a ModelConfig and back."""

import math
import re
import typing
from collections.abc import Mapping
from typing import Any

from cascade_jax.config import ConfigError, ModelConfig, build
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.model.convert.keys import (
    ARCHITECTURES,
    BLOCK_TYPES,
    DEFAULTS,
    KEYS,
    LETTERS,
    NEEDED,
    PLAIN,
    SPELLINGS,
)
from cascade_jax.model.convert.names import family

MOST_BLOCKS = 4_096  # of num_hidden_layers, so that a slip is refused before a list of that many layers is made
LARGEST = 2**63 - 1  # of any whole number: JSON has no bound, and float() does
NEED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
HINTS = typing.get_type_hints(ModelConfig)


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
    if kind is None and "pattern" in values:
        raise CheckpointError("this is a checkpoint of ours; give it as --checkpoint.")
    if not isinstance(kind, str) or kind not in KEYS:
        raise CheckpointError(f"model_type {kind!r} is not known; allowed are {', '.join(KEYS)}.")
    _check_plain(values)
    keys, pattern = KEYS[kind], _pattern(values, kind)
    needed = [field for letter in ("", *sorted(set(pattern))) for field in NEEDED[letter] if field in keys]
    missing = [keys[field] for field in needed if _get(values, keys[field]) is None]
    if missing:
        raise CheckpointError(f"it lacks {', '.join(missing)}.")
    found = {field: _value(values, key, kind) for field, key in keys.items()}
    found = {field: value for field, value in found.items() if value is not None}
    theirs = {field: _name(values, key) for field, key in keys.items()}
    for field, value in found.items():
        _typed(theirs[field], value, HINTS[field])
    found.setdefault("kv_heads", found.get("heads", 1))
    found.setdefault("head_dim", found["width"] // max(found.get("heads", 1), 1))  # no heads are refused below
    if kind == "nemotron_h":  # rope_theta stands in its config.json, but there are no positions in the network
        rest = {"rope_theta": None, "activation": "relu2", "time_step_limit": _time_step_limit(values)}
    else:
        rest = {"rope_theta": _rope_theta(values), "activation": "swiglu", "qk_norm": kind != "llama"}
        rest["router"] = "softmax"
    dtype = "bfloat16" if _get(values, "dtype") == "bfloat16" else "float32"
    try:
        return build(ModelConfig, {"pattern": pattern, "dtype": dtype, **found, **rest}, "it")
    except ConfigError as error:
        message = re.sub(r"\b(\w+)=", lambda match: f"{theirs.get(match[1], match[1])}=", str(error))
        raise CheckpointError(message.removeprefix("it: ")) from None


def _check_plain(values: Mapping[str, Any]) -> None:
    """CheckpointError lists the settings that have a value other than those that the network can follow."""
    allowed = dict(PLAIN)
    if values.get("use_sliding_window") is not False:  # a width may stand beside a window that is switched off
        allowed["sliding_window"] = ()
    given = {_name(values, key): (_get(values, key), choices) for key, choices in allowed.items()}
    faults = [
        f"{name}={value!r}; allowed is {' or '.join(map(str, choices)) or 'null'}"
        for name, (value, choices) in given.items()
        if value is not None and not _among(value, choices)
    ]
    if faults:
        raise CheckpointError(f"the network cannot follow {', nor '.join(faults)}.")


def _among(value: Any, choices: tuple[Any, ...]) -> bool:
    """Membership for which true is not 1."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _typed(key: str, value: Any, kind: type) -> Any:
    """The value. CheckpointError where it has another type; whole numbers are numbers, truth values are not."""
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise CheckpointError(f"{key}={value!r} is of the wrong type; {NEED[kind]} is needed.")
    if kind in (int, float) and isinstance(value, int) and abs(value) > LARGEST:
        raise CheckpointError(f"{key} is out of range; choose a number of fewer digits.")
    return value


def _listed(values: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """The list under a key, empty where there is none, each entry of that type."""
    name, given = _name(values, key), _get(values, key)
    found = [] if given is None else _typed(name, given, list)
    return [_typed(f"{name}[{i}]", entry, kind) for i, entry in enumerate(found)]


def config_to_hf(config: ModelConfig, *, dtype: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A config.json for this network that old and new loaders read; all else comes from `source`. dtype: of weights."""
    kind = family(config)
    values = dict(source or {"model_type": kind, "architectures": [ARCHITECTURES[kind]]})
    if not {"dtype", "torch_dtype"} & values.keys():
        values["torch_dtype"] = dtype
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


def _name(values: Mapping[str, Any], key: str) -> str:
    """The spelling of the key under which something stands."""
    return next((name for name in (key, *SPELLINGS.get(key, ())) if values.get(name) is not None), key)


def _get(values: Mapping[str, Any], key: str) -> Any:
    return values.get(_name(values, key))


def _value(values: Mapping[str, Any], key: str, kind: str) -> Any:
    value, default = _get(values, key), DEFAULTS.get(key)
    if value is not None:
        return value
    return default[kind] if isinstance(default, dict) else default


def _pattern(values: Mapping[str, Any], kind: str) -> str:
    if kind == "nemotron_h":
        return _hybrid_pattern(values)
    blocks = _typed("num_hidden_layers", values.get("num_hidden_layers"), int)
    if not 1 <= blocks <= MOST_BLOCKS:
        raise CheckpointError(f"num_hidden_layers={blocks} is out of range; choose from 1 to {MOST_BLOCKS}.")
    layers = _listed(values, "layer_types", str)
    others = sorted(set(layers) - {"full_attention"})
    if others:
        raise CheckpointError(
            f"the network cannot follow layer_types with {', '.join(others)}; allowed is full_attention."
        )
    if layers and len(layers) != blocks:
        raise CheckpointError(
            f"layer_types has {len(layers)} entries, but num_hidden_layers={blocks}; both must agree."
        )
    if kind != "qwen3_moe":
        return "*-" * blocks
    dense, step = set(_listed(values, "mlp_only_layers", int)), _get(values, "decoder_sparse_step")
    step = _typed("decoder_sparse_step", 1 if step is None else step, int)
    if step < 1:
        raise CheckpointError(f"decoder_sparse_step={step} is out of range; choose 1 or more.")
    return "".join("*-" if i in dense or (i + 1) % step else "*E" for i in range(blocks))


def _hybrid_pattern(values: Mapping[str, Any]) -> str:
    given = _get(values, "hybrid_override_pattern")
    given = _typed("hybrid_override_pattern", "" if given is None else given, str)
    names = _listed(values, "layers_block_type", str)
    unknown = sorted({*names} - {*LETTERS} | {*given} - {*BLOCK_TYPES})
    if unknown:
        raise CheckpointError(
            f"it has layers of unknown kinds {unknown}; allowed are {', '.join(LETTERS)}, "
            f"and {', '.join(BLOCK_TYPES)} in hybrid_override_pattern."
        )
    listed = "".join(LETTERS[name] for name in names)
    if not (given or listed) or (given and listed and given != listed):
        raise CheckpointError(
            f"it has hybrid_override_pattern {given!r} and layers_block_type for {listed!r}; "
            "one of them is needed, and both must tell the same."
        )
    pattern, layers = given or listed, _get(values, "num_hidden_layers")
    if layers is not None and _typed("num_hidden_layers", layers, int) != len(pattern):
        raise CheckpointError(f"num_hidden_layers={layers}, but there are {len(pattern)} layers; both must agree.")
    return pattern


def _rope_theta(values: Mapping[str, Any]) -> float:
    """Plain rotary positions over the whole head are all that there is; anything else is refused by name."""
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        given = found[key] = _typed(key, {} if values.get(key) is None else values[key], dict)
        known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}  # a factor, or a table by layer, is not
        if given.get("rope_type", given.get("type")) not in (None, "default") or given.keys() - known:
            raise CheckpointError(
                f"the network cannot follow {key}={given!r}; only plain rotary positions can be read."
            )
    parameters = found["rope_parameters"]
    partial = parameters.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if partial is not None and not _among(partial, (1.0,)):
        raise CheckpointError(f"the network cannot follow partial_rotary_factor={partial!r}; only 1.0 can be read.")
    theta = next((place["rope_theta"] for place in (parameters, values) if place.get("rope_theta") is not None), 1e4)
    return float(_typed("rope_theta", theta, float))


def _time_step_limit(values: Mapping[str, Any]) -> tuple[float, float] | None:
    """None where it limits nothing, in any of the ways in which infinity has been written."""
    given = _get(values, "time_step_limit")
    if given is None:
        return None
    name = _name(values, "time_step_limit")
    if len(_typed(name, given, list)) != 2:
        raise CheckpointError(f"{name}={given!r} must have 2 entries, the least and the largest step.")
    bounds = [math.inf if bound == {"__float__": "Infinity"} else bound for bound in given]
    low, high = (float(_typed(f"{name}[{i}]", bound, float)) for i, bound in enumerate(bounds))
    return None if low == 0 and math.isinf(high) else (low, high)
