"""Folders that are not what they say: one sentence that names file and tensor."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade_jax.model.convert import CheckpointError, config_from_hf, load_hf, save_hf
from tests.convert.files import Tensors, read_config, read_folder, shard_name, write_file, write_folder

INDEX = "model.safetensors.index.json"
FIRST, SECOND = shard_name(1, 2), shard_name(2, 2)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 10,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (12, 8),
    "model.layers.0.self_attn.k_proj.weight": (6, 8),
    "model.layers.0.self_attn.v_proj.weight": (6, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 12),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.mlp.gate_proj.weight": (10, 8),
    "model.layers.0.mlp.up_proj.weight": (10, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 10),
    "model.norm.weight": (8,),
    "lm_head.weight": (16, 8),
}
IN_FIRST, IN_SECOND = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"


def bfloat16(values: np.ndarray) -> bytes:
    """Rounded towards zero, little endian."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    return {name: ("BF16", shape, bfloat16(rng.standard_normal(shape))) for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder of two shards."""
    return write_folder(tmp_path / "sound", CONFIG, tensors(), shards=2)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_hf(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert str(folder) in message
    return message


def test_the_sound_folder_is_read(folder: Path) -> None:
    config, params = load_hf(folder)
    assert (config.pattern, config.head_dim, config.kv_heads) == ("*-", 6, 1)
    assert params["layers"]["0"]["mixer"]["q_proj"].shape == (8, 12)


def cut(bytes_kept: Callable[[int], int]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        data = (folder / SECOND).read_bytes()
        (folder / SECOND).write_bytes(data[: bytes_kept(len(data))])

    return spoil


def rewritten(edit: Callable[[Tensors], object], *, shard: int = 2) -> Callable[[Path], None]:
    """Changes what one shard holds; the index stays as it was."""

    def spoil(folder: Path) -> None:
        names = list(SHAPES)[:6] if shard == 1 else list(SHAPES)[6:]
        held = {name: tensor for name, tensor in tensors().items() if name in names}
        edit(held)
        write_file(folder / shard_name(shard, 2), held)

    return spoil


def swap(folder: Path) -> None:
    first, second = (folder / FIRST).read_bytes(), (folder / SECOND).read_bytes()
    (folder / FIRST).write_bytes(second)
    (folder / SECOND).write_bytes(first)


def with_nan(dtype: str) -> Callable[[Tensors], None]:
    def edit(held: Tensors) -> None:
        values = np.ones(80, np.float32)
        values[57] = np.nan
        data = values.tobytes() if dtype == "F32" else bfloat16(values)
        held[IN_SECOND] = (dtype, (10, 8), data)

    return edit


SPOILT: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "cut in the data": (cut(lambda size: size - 8), (SECOND,)),
    "cut in the header": (cut(lambda size: 100), (SECOND,)),
    "cut in the length": (cut(lambda size: 3), (SECOND,)),
    "empty": (cut(lambda size: 0), (SECOND,)),
    "swapped": (swap, (FIRST, SECOND, IN_FIRST, IN_SECOND)),
    "NaN": (rewritten(with_nan("BF16")), (SECOND, IN_SECOND, "NaN")),
    "NaN in float32": (rewritten(with_nan("F32")), (SECOND, IN_SECOND, "NaN")),
    "no such shard": (lambda folder: (folder / SECOND).unlink(), (SECOND,)),
    "missing": (rewritten(lambda held: held.pop(IN_SECOND)), (SECOND, IN_SECOND)),
    "left over": (
        rewritten(lambda held: held.update({"model.layers.1.extra.weight": ("BF16", (2,), bytes(4))})),
        (SECOND, "model.layers.1.extra.weight"),
    ),
    "wrong shape": (
        rewritten(lambda held: held.update({IN_SECOND: ("BF16", (8, 10), bytes(160))})),
        (SECOND, IN_SECOND, "(8, 10)", "(10, 8)"),
    ),
    "fp8": (
        rewritten(lambda held: held.update({IN_SECOND: ("F8_E4M3", (10, 8), bytes(80))})),
        (SECOND, IN_SECOND, "F8_E4M3"),
    ),
    "int8": (rewritten(lambda held: held.update({IN_SECOND: ("I8", (10, 8), bytes(80))})), (SECOND, IN_SECOND, "I8")),
    "index of something else": (lambda folder: (folder / INDEX).write_text("[1, 2"), (INDEX,)),
    "index without a map": (lambda folder: (folder / INDEX).write_text("{}"), (INDEX,)),
    "no weights": (lambda folder: [file.unlink() for file in folder.glob("model*")], ("safetensors",)),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_spoilt_folder_is_refused_by_name(fault: str, folder: Path) -> None:
    spoil, named = SPOILT[fault]
    spoil(folder)
    message = refusal(folder)
    for name in named:
        assert name in message


def test_one_message_lists_every_fault(folder: Path) -> None:
    rewritten(lambda held: held.pop(IN_FIRST), shard=1)(folder)

    def edit(held: Tensors) -> None:
        held[IN_SECOND] = ("BF16", (10, 7), bytes(140))
        held["model.layers.7.mlp.up_proj.weight"] = held["model.layers.0.mlp.gate_proj.weight"]
        del held["model.norm.weight"]

    rewritten(edit)(folder)
    message = refusal(folder)
    for name in (IN_FIRST, IN_SECOND, "model.layers.7.mlp.up_proj.weight", "model.norm.weight", "(10, 7)"):
        assert name in message
    assert "model.layers.0.mlp.down_proj.weight" not in message  # which is sound


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 17}, ("model.embed_tokens.weight", "lm_head.weight", "(16, 8)", "(17, 8)", FIRST, SECOND)),
        ({"num_hidden_layers": 2}, ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight")),
        ({"head_dim": 4}, (IN_FIRST, "(12, 8)", "(8, 8)")),
        ({"attention_bias": True}, ("model.layers.0.self_attn.q_proj.bias",)),
        ({"model_type": "qwen3"}, ("model.layers.0.self_attn.q_norm.weight",)),
    ],
)
def test_a_config_that_contradicts_the_tensors(change: dict[str, Any], named: tuple[str, ...], folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    message = refusal(folder)
    for name in named:
        assert name in message


def test_a_pattern_that_contradicts_the_tensors(written: Callable[[str], Path], tmp_path: Path) -> None:
    config = read_config(written("nemotron"))
    kinds = config["layers_block_type"]
    config["layers_block_type"] = [kinds[0], kinds[2], kinds[1], *kinds[3:]]  # E and * change places
    config.pop("num_hidden_layers", None)
    message = refusal(write_folder(tmp_path / "other", config, read_folder(written("nemotron"))))
    for name in ("layers.1.mixer.q_proj.weight", "layers.2.mixer.gate.weight", "model.safetensors"):
        assert name in message


def test_quantised_experts_in_one_tensor(written: Callable[[str], Path], tmp_path: Path) -> None:
    tensors = read_folder(written("nemotron"))
    experts = "backbone.layers.1.mixer.experts"
    rows, columns = tensors[f"{experts}.0.up_proj.weight"][1]
    for e in range(8):
        del tensors[f"{experts}.{e}.up_proj.weight"]
    tensors[f"{experts}.up_proj"] = ("F8_E4M3", (8, rows, columns), bytes(8 * rows * columns))
    message = refusal(write_folder(tmp_path / "fp8", read_config(written("nemotron")), tensors))
    for name in (f"{experts}.up_proj in model.safetensors", "F8_E4M3"):
        assert name in message


@pytest.mark.parametrize("text", ["{'vocab_size': 16}", "", "[]", "\x00\x01"])
def test_a_config_that_is_no_json_object(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)


QWEN = {**CONFIG, "model_type": "qwen3"}
NEMOTRON = {
    "model_type": "nemotron_h",
    "vocab_size": 16,
    "hidden_size": 8,
    "hybrid_override_pattern": "M*-E",
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 10,
    "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 2,
    "mamba_head_dim": 4,
    "n_groups": 1,
    "ssm_state_size": 4,
    "conv_kernel": 4,
    "chunk_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "moe_shared_expert_intermediate_size": 8,
    "tie_word_embeddings": False,
}


def test_the_plain_configs_are_taken() -> None:
    unused = {"sliding_window": None, "rope_scaling": None, "quantization_config": None}
    assert config_from_hf(CONFIG | unused) == config_from_hf(CONFIG)
    assert config_from_hf(QWEN | unused | {"use_sliding_window": False, "sliding_window": 4096}).qk_norm
    nemotron = config_from_hf(NEMOTRON | {"rope_theta": 10000, "partial_rotary_factor": 1.0})
    assert (nemotron.rope_theta, nemotron.pattern) == (None, "M*-E")
    assert config_from_hf(NEMOTRON | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}) == nemotron


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (CONFIG | {"model_type": "mistral"}, ("mistral", "nemotron_h", "qwen3", "qwen3_moe", "llama")),
        ({name: value for name, value in CONFIG.items() if name != "model_type"}, ("model_type",)),
        (QWEN | {"use_sliding_window": True, "sliding_window": 4096}, ("sliding_window", "4096")),
        (NEMOTRON | {"sliding_window": 128}, ("sliding_window", "128")),
        (CONFIG | {"quantization_config": {"quant_method": "fp8"}}, ("quantization_config", "fp8")),
        (CONFIG | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope", "llama3")),
        (CONFIG | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, ("rope", "yarn")),
        (CONFIG | {"hidden_act": "gelu"}, ("hidden_act", "gelu")),
        (CONFIG | {"mlp_bias": True}, ("mlp_bias",)),
        (NEMOTRON | {"mlp_hidden_act": "silu"}, ("mlp_hidden_act", "silu")),
        (NEMOTRON | {"mamba_proj_bias": True}, ("mamba_proj_bias",)),
        (NEMOTRON | {"use_bias": True}, ("use_bias",)),
        (NEMOTRON | {"use_conv_bias": False}, ("use_conv_bias",)),
        (NEMOTRON | {"hybrid_override_pattern": "M*-X"}, ("config.json", "X")),
        ({name: value for name, value in CONFIG.items() if name != "hidden_size"}, ("hidden_size",)),
        (CONFIG | {"vocab_size": "many"}, ("vocab_size",)),
    ],
)
def test_what_the_network_cannot_be_is_refused_by_name(config: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError) as caught:
        config_from_hf(config)
    assert "\n" not in str(caught.value)
    for name in named:
        assert name in str(caught.value)


def test_a_refusal_of_the_config_names_its_file(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "mistral"}))
    assert "config.json" in refusal(folder)


def test_what_no_hugging_face_model_holds_is_not_written(folder: Path, tmp_path: Path) -> None:
    config, params = load_hf(folder)
    with pytest.raises(CheckpointError, match=r"relu2.*nemotron_h"):
        save_hf(tmp_path / "out", replace(config, activation="relu2"), params)
    with pytest.raises(CheckpointError, match=r"sound.*model\.layers\.1\.mlp\.up_proj\.weight"):
        save_hf(tmp_path / "out", replace(config, pattern="*-*-"), params, source=folder)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["sound"]


def test_a_folder_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_hf(tmp_path / "nowhere")
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_hf(folder)
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(FileNotFoundError, match="sound"):
        load_hf(folder)
