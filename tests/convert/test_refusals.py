"""Folders that are not what they say: one sentence that names file and tensor."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade_jax.model.convert import CheckpointError, load_hf, save_hf
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


def indexed(file: object) -> Callable[[Path], None]:
    """An index that puts one tensor elsewhere."""

    def spoil(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"][IN_SECOND] = file
        (folder / INDEX).write_text(json.dumps(index))

    return spoil


def without_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / SECOND).unlink()


def a_folder_for_a_file(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


def sized(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def edited_header(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Another header over the same data."""

    def spoil(folder: Path) -> None:
        content = (folder / SECOND).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        edit(header)
        (folder / SECOND).write_bytes(sized(json.dumps(header).encode(), content[end:]))

    return spoil


def header_with(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return edited_header(lambda header: header.update({IN_SECOND: change(header[IN_SECOND])}))


def header_without(name: str) -> Callable[[Path], None]:
    return edited_header(lambda header: header.pop(name))


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
    "index of paths": (indexed("../other.safetensors"), (INDEX, IN_SECOND, "../other.safetensors")),
    "index of other files": (indexed("pytorch_model.bin"), (INDEX, IN_SECOND, "pytorch_model.bin")),
    "index of numbers": (indexed(3), (INDEX, IN_SECOND, "3")),
    "index of nothing": (lambda folder: (folder / INDEX).write_text('{"weight_map": {}}'), (INDEX,)),
    "index as a list": (lambda folder: (folder / INDEX).write_text('{"weight_map": ["a", "b"]}'), (INDEX,)),
    "index too deep": (lambda folder: (folder / INDEX).write_text("[" * 100_000), (INDEX,)),
    "no such shard, no index": (without_index, (SECOND, "missing")),
    "a folder in its place": (a_folder_for_a_file, (SECOND, "missing")),
    "git-lfs": (
        lambda folder: (folder / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        (SECOND, "git lfs pull"),
    ),
    "header too deep": (lambda folder: (folder / SECOND).write_bytes(sized(b"[" * 100_000)), (SECOND,)),
    "header as a list": (lambda folder: (folder / SECOND).write_bytes(sized(b"[1]")), (SECOND,)),
    "no entry": (header_with(lambda entry: None), (SECOND, IN_SECOND)),
    "entry without offsets": (header_with(lambda entry: {"dtype": "BF16", "shape": [10, 8]}), (SECOND, IN_SECOND)),
    "dtype of a number": (header_with(lambda entry: entry | {"dtype": 3}), (SECOND, IN_SECOND)),
    "shape of a text": (header_with(lambda entry: entry | {"shape": "80"}), (SECOND, IN_SECOND)),
    "shape of fractions": (header_with(lambda entry: entry | {"shape": [10.0, 8]}), (SECOND, IN_SECOND)),
    "negative shape": (header_with(lambda entry: entry | {"shape": [-10, -8]}), (SECOND, IN_SECOND)),
    "offsets of texts": (header_with(lambda entry: entry | {"data_offsets": ["a", "b"]}), (SECOND, IN_SECOND)),
    "offsets of fractions": (header_with(lambda entry: entry | {"data_offsets": [0.0, 160.0]}), (SECOND, IN_SECOND)),
    "negative offsets": (header_with(lambda entry: entry | {"data_offsets": [-160, 0]}), (SECOND, IN_SECOND)),
    "overlap": (header_with(lambda entry: entry | {"data_offsets": [0, 160]}), (SECOND, IN_SECOND, "overlaps")),
    "hole": (header_without(IN_SECOND), (SECOND, "160 bytes between", "belong to no tensor")),
    "bytes at the end": (
        lambda folder: (folder / SECOND).write_bytes((folder / SECOND).read_bytes() + bytes(40)),
        (SECOND, "40 bytes behind lm_head.weight"),
    ),
    "no weights": (lambda folder: [file.unlink() for file in folder.glob("model*")], ("safetensors",)),
}


def test_what_lies_beside_a_single_file_is_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "single", CONFIG, tensors())
    want = load_hf(folder)[1]["embedding"]
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    write_file(folder / "adapter_model.safetensors", {"lora": ("F32", (1,), bytes(4))})
    assert np.array_equal(load_hf(folder)[1]["embedding"], want)


def test_shards_need_no_index(folder: Path) -> None:
    want = load_hf(folder)[1]["embedding"]
    (folder / INDEX).unlink()
    assert np.array_equal(load_hf(folder)[1]["embedding"], want)


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


@pytest.mark.parametrize("text", ["{'vocab_size': 16}", "", "[]", "\x00\x01", "[" * 100_000])
def test_a_config_that_is_no_json_object(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)


def test_a_refusal_of_the_config_names_its_file(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "mistral"}))
    assert "config.json" in refusal(folder)


def test_what_no_hugging_face_model_holds_is_not_written(folder: Path, tmp_path: Path) -> None:
    config, params = load_hf(folder)
    with pytest.raises(CheckpointError, match=r"relu2.*nemotron_h"):
        save_hf(tmp_path / "out", replace(config, activation="relu2"), params)
    with pytest.raises(CheckpointError, match=r"not of this config: layers/2/mixer/k_proj is missing"):
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
