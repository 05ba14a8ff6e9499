"""A llama-type GGUF file (llama.cpp's format) as our config, float32 params and Hugging Face's tokenizer files."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cascade_jax.config import ConfigError, ModelConfig
from cascade_jax.model import apply
from cascade_jax.model.convert.carried import SETTINGS
from cascade_jax.model.convert.error import CheckpointError
from cascade_jax.types import Params

# tokenizer.ggml.token_type of tokens that are matched whole in a text, before any merge
_CONTROL, _USER_DEFINED = 3, 4

_SPECIALS = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}  # their name -> Hugging Face's
_ATTENTION = {
    "q_proj": "attn_q.weight",
    "k_proj": "attn_k.weight",
    "v_proj": "attn_v.weight",
    "o_proj": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
}
_MLP = {"gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight"}


def load_gguf(path: str | Path) -> tuple[ModelConfig, Params, dict[str, str]]:
    """The config, the params (float32, on the default device) and the side files, name -> text, of one .gguf file.

    FileNotFoundError, or one CheckpointError that names all that is missing, left over, mis-shaped or not known here.
    """
    path = Path(path)
    reader = _open(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        config = _config(metadata, set(tensors))
        return config, _params(config, tensors), _side_files(metadata)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _open(path: Path) -> Any:
    import gguf

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of a .gguf file.")
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError) as error:  # all that a wrong or cut file makes the reader raise
        raise CheckpointError(f"{path} is not a whole GGUF file ({error}); fetch it again.") from None


def _config(metadata: Mapping[str, Any], names: set[str]) -> ModelConfig:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"the architecture is {architecture!r}; only 'llama' can be read from GGUF.")

    def get(key: str) -> Any:
        return metadata[f"llama.{key}"]

    needed = (
        "vocab_size",
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    )
    _refuse("the metadata lacks", [f"llama.{key}" for key in needed if f"llama.{key}" not in metadata])
    heads = get("attention.head_count")
    head_dim = metadata.get("llama.attention.key_length", get("embedding_length") // heads)
    plain = {  # settings that the network does not have, with the only values that mean "not used"
        "expert_count": (0,),
        "rope.scaling.type": ("none",),
        "rope.dimension_count": (head_dim,),
        "attention.value_length": (head_dim,),
    }
    _refuse(
        "these settings have no counterpart in the network:",
        [
            f"llama.{key}={metadata[f'llama.{key}']!r}"
            for key, values in plain.items()
            if metadata.get(f"llama.{key}", values[0]) not in values
        ],
    )
    return ModelConfig(
        vocab_size=get("vocab_size"),
        width=get("embedding_length"),
        pattern="*-" * get("block_count"),
        norm_eps=_short(get("attention.layer_norm_rms_epsilon")),
        tied_embeddings="output.weight" not in names,
        heads=heads,
        kv_heads=metadata.get("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_theta=_short(metadata.get("llama.rope.freq_base", 10000.0)),
        attention_bias="blk.0.attn_q.bias" in names,
        mlp_width=get("feed_forward_length"),
        activation="swiglu",
    )


def _short(value: float) -> float:
    """The decimal that was meant: 9.999999747378752e-06, a float32 read as float64, is 1e-05."""
    return float(str(np.float32(value)))


class _Source(NamedTuple):
    """Where a weight lies in the file: (out, in) shape there, and what makes our array of it."""

    name: str
    shape: tuple[int, ...]
    convert: Callable[[np.ndarray], np.ndarray]


def _source(config: ModelConfig, path: Sequence[str], shape: tuple[int, ...]) -> _Source:
    """The tensor for the leaf at `path` of the params tree."""
    if path[0] == "embedding":
        return _Source("token_embd.weight", shape, np.asarray)
    if path[0] == "final_norm":
        return _Source("output_norm.weight", shape, np.asarray)
    if path[0] == "head":
        return _Source("output.weight", shape[::-1], np.transpose)
    block, place = divmod(int(path[1]), 2)  # layers 2b and 2b + 1 are the attention and the MLP of block b
    if path[2] == "norm":
        return _Source(f"blk.{block}.{('attn_norm', 'ffn_norm')[place]}.weight", shape, np.asarray)
    weight = path[3]
    name = f"blk.{block}.{(_ATTENTION, _MLP)[place][weight]}"
    heads = {"q": config.heads, "k": config.kv_heads}.get(weight[0]) if place == 0 else None
    if heads is None:
        return _Source(name, shape[::-1], np.transpose)
    return _Source(name, shape[::-1], lambda array: half_split(array, heads).T)


def half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (heads * head_dim, ...) of q or k, from llama.cpp's interleaved rotary order to first half, second half."""
    paired = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def _params(config: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    from gguf import quants

    leaves, tree = jax.tree.flatten_with_path(apply.abstract(config))
    sources = [_source(config, [key.key for key in path], leaf.shape) for path, leaf in leaves]
    shapes = {name: tuple(int(n) for n in tensor.shape[::-1]) for name, tensor in tensors.items()}
    faults = [f"{s.name} is missing" for s in sources if s.name not in tensors]
    faults += [f"{name} is left over" for name in sorted(set(tensors) - {s.name for s in sources})]
    faults += [
        f"{s.name} has shape {shapes[s.name]} instead of {s.shape}"
        for s in sources
        if s.name in tensors and shapes[s.name] != s.shape
    ]
    _refuse("the tensors do not fit the metadata:", faults)

    def read(source: _Source) -> jax.Array:
        tensor = tensors[source.name]
        array = quants.dequantize(tensor.data, tensor.tensor_type)
        return jax.numpy.array(source.convert(array), jax.numpy.float32)

    return jax.tree.unflatten(tree, [read(source) for source in sources])


def _side_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What Hugging Face keeps beside the weights: the tokenizer, its special tokens, the chat template, the end id."""
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _SPECIALS}
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    named = {name: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {f"{_SPECIALS[name]}_token": token for name, token in named.items()}
    generation = {f"{name}_token_id": ids[name] for name in ("bos", "eos") if ids[name] is not None}
    their_config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": metadata.get("llama.context_length", 2048),
        **{f"{short}_token_id": ids[name] for name, short in _SPECIALS.items() if short != "unk" and name in named},
    }
    files = {
        SETTINGS: json.dumps(their_config, indent=2),
        "tokenizer.json": _tokenizer(metadata),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False),
        "generation_config.json": json.dumps(generation, indent=2),
    }
    template = metadata.get("tokenizer.chat_template")
    return files if template is None else {**files, "chat_template.jinja": template}


def _tokenizer(metadata: Mapping[str, Any]) -> str:
    """A byte-level BPE tokenizer.json: digits one by one, then GPT-2's split, then the merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(
            f"the tokenizer has model {kind[0]!r} and pre-tokenizer {kind[1]!r}; only 'gpt2' with 'smollm' can be read."
        )
    keys = [f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "token_type")]
    _refuse("the metadata lacks", [key for key in keys if key not in metadata])
    tokens, merges, types = (metadata[key] for key in keys)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    _refuse(
        "these merges make no token of two:",
        [merge for merge, pair in zip(merges, pairs, strict=True) if not {*pair, "".join(pair)} <= vocabulary.keys()],
    )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return tokenizer.to_str()


def _refuse(what: str, faults: Sequence[str]) -> None:
    if faults:
        raise CheckpointError(f"{what} {', '.join(faults)}.")
