"""What comes in goes out: the same bytes, whatever the layout of the folder; and transformers reads it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cascade_jax.model import apply
from cascade_jax.model.convert import load_hf, save, save_hf, tensor_shapes
from tests.convert import reference
from tests.convert.files import Tensors, read_config, read_folder, shard_name, write_folder

IDS = np.arange(30).reshape(2, 15) * 7 % reference.VOCABULARY
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "modeling_nemotron_h.py",
    "configuration_nemotron_h.py",
)


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


def fused(tensors: Tensors, experts: str, parts: tuple[str, ...], target: str) -> Tensors:
    """The experts' own tensors -> one of shape (E, out, in); the rows of several parts follow each other."""
    found = [name for name in tensors if f"{experts}.0.{parts[0]}.weight" in name]
    assert found
    out = dict(tensors)
    for name in found:
        before = name.split(f"{experts}.0.")[0] + experts
        count = sum(1 for other in tensors if other.startswith(before) and other.endswith(f".{parts[0]}.weight"))
        stacked = [out.pop(f"{before}.{e}.{part}.weight") for e in range(count) for part in parts]
        dtype, (rows, columns), _ = stacked[0]
        out[f"{before}.{target}"] = (dtype, (count, rows * len(parts), columns), b"".join(data for *_, data in stacked))
    return out


def nemotron_fused(tensors: Tensors) -> Tensors:
    tensors = fused(tensors, "mixer.experts", ("up_proj",), "up_proj")
    return fused(tensors, "mixer.experts", ("down_proj",), "down_proj")


def qwen_fused(tensors: Tensors) -> Tensors:
    tensors = fused(tensors, "mlp.experts", ("gate_proj", "up_proj"), "gate_up_proj")
    return fused(tensors, "mlp.experts", ("down_proj",), "down_proj")


LAYOUTS: dict[str, tuple[str, Callable[[Tensors], Tensors], int]] = {
    "model prefix": ("nemotron", lambda t: renamed(t, "backbone.", "model."), 1),
    "fused": ("nemotron", nemotron_fused, 1),
    "model prefix, fused, shards": ("nemotron-latent", lambda t: renamed(nemotron_fused(t), "backbone.", "model."), 3),
    "shards": ("nemotron-tied", lambda t: t, 4),
    "shards, backwards": ("llama", lambda t: dict(reversed(t.items())), 3),
    "qwen fused": ("qwen3-moe", qwen_fused, 2),
}


@pytest.mark.parametrize("name", ["nemotron", "qwen3-moe"])
def test_padding_of_experts_stays_here(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    config, params = load_hf(written(name))
    wide = dataclasses.replace(config, expert_padding=8)
    save_hf(tmp_path / "out", wide, apply.grown(wide, params), source=written(name))
    assert read_folder(tmp_path / "out") == read_folder(written(name))


@pytest.mark.parametrize("name", reference.NETS)
def test_out_as_it_came_in(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    source = written(name)
    before = read_folder(source)
    config, params = load_hf(source)
    assert tensor_shapes(config) == {tensor: shape for tensor, (_, shape, _) in before.items()}
    save_hf(tmp_path / "out", config, params, source=source)
    assert read_folder(tmp_path / "out") == before
    assert load_hf(tmp_path / "out")[0] == config
    want = reference.logits(reference.load(source), IDS)
    np.testing.assert_array_equal(reference.logits(reference.load(tmp_path / "out"), IDS), want)
    # Training holds float32 masters; the folder gets back the dtypes that it had.
    save_hf(tmp_path / "masters", *load_hf(source, dtype=jnp.float32), source=source)
    assert read_folder(tmp_path / "masters") == before


@pytest.mark.parametrize("name", reference.NETS)
def test_without_a_source_the_config_says_it_all(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    source = written(name)
    config, params = load_hf(source)
    save_hf(tmp_path / "out", config, params)
    assert read_folder(tmp_path / "out") == read_folder(source)
    assert load_hf(tmp_path / "out")[0] == config
    want = reference.logits(reference.load(source), IDS)
    np.testing.assert_array_equal(reference.logits(reference.load(tmp_path / "out"), IDS), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_and_one_is_written(layout: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    name, change, shards = LAYOUTS[layout]
    before = read_folder(written(name))
    config = read_config(written(name))
    source = write_folder(tmp_path / "in", config, change(before), shards=shards)
    save_hf(tmp_path / "out", *load_hf(source), source=source)
    assert read_folder(tmp_path / "out") == before


def test_large_models_are_written_in_shards(
    written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "SHARD_BYTES", 20_000)
    save_hf(tmp_path / "out", *load_hf(written("nemotron")))
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [file.name for file in files] == [shard_name(i, len(files)) for i in range(1, len(files) + 1)]
    assert len(files) > 3
    assert read_folder(tmp_path / "out") == read_folder(written("nemotron"))  # which checks the index
    want = reference.logits(reference.load(written("nemotron")), IDS)
    np.testing.assert_array_equal(reference.logits(reference.load(tmp_path / "out"), IDS), want)


def test_each_tensor_keeps_its_dtype(written: Callable[[str], Path], tmp_path: Path) -> None:
    """bfloat16 matrices with a bfloat16 router, and float32 where the recurrence is sensitive, as in some files."""
    before = read_folder(written("nemotron-tied"))
    for name, (dtype, shape, data) in before.items():
        if name.endswith(("A_log", ".D", "dt_bias")):
            assert dtype == "BF16"
            wide = b"".join(b"\x01\x00" + data[i : i + 2] for i in range(0, len(data), 2))
            before[name] = ("F32", shape, wide)
        elif name.endswith("gate.weight"):
            assert dtype == "F32"
            before[name] = ("BF16", shape, np.frombuffer(data, np.uint16)[1::2].tobytes())
    source = write_folder(tmp_path / "in", read_config(written("nemotron-tied")), before)
    save_hf(tmp_path / "out", *load_hf(source), source=source)
    assert read_folder(tmp_path / "out") == before


@pytest.mark.parametrize("with_source", [True, False])
def test_nemotron_config_is_for_old_readers_too(
    with_source: bool, written: Callable[[str], Path], tmp_path: Path
) -> None:
    source = written("nemotron")
    assert "hybrid_override_pattern" not in read_config(source)  # what transformers 5 writes, others cannot read
    assert "time_step_limit" in read_config(source)
    save_hf(tmp_path / "out", *load_hf(source), source=source if with_source else None)
    text = (tmp_path / "out" / "config.json").read_text()
    values = json.loads(text)
    assert values["model_type"] == "nemotron_h"
    assert values["architectures"] == ["NemotronHForCausalLM"]
    assert values["hybrid_override_pattern"] == "ME*-"
    assert values["num_hidden_layers"] == 4
    assert values["layers_block_type"] == ["mamba", "moe", "attention", "mlp"]
    assert "time_step_limit" not in values
    assert "Infinity" not in text


def old_spelling(values: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers 4 spelled it."""
    values = dict(values)
    rope = values.pop("rope_parameters", None)
    values["torch_dtype"] = values.pop("dtype")
    if values["model_type"] == "nemotron_h":
        kinds = {"linear_attention": "M", "moe": "E", "full_attention": "*", "mlp": "-"}
        values["hybrid_override_pattern"] = "".join(kinds[kind] for kind in values.pop("layers_block_type"))
        values["num_hidden_layers"] = len(values["hybrid_override_pattern"])
        del values["time_step_limit"]
        return {**values, "rope_theta": 10000, "partial_rotary_factor": 1.0, "sliding_window": None}
    values.pop("layer_types", None)
    if "num_local_experts" in values:
        values["num_experts"] = values.pop("num_local_experts")
    return {**values, "rope_theta": rope["rope_theta"], "rope_scaling": None}


@pytest.mark.parametrize("name", ["nemotron", "qwen3", "qwen3-moe", "llama"])
def test_old_and_new_spellings_of_a_config(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    values = read_config(written(name))
    old = write_folder(tmp_path / "old", old_spelling(values), read_folder(written(name)))
    assert load_hf(old)[0] == load_hf(written(name))[0]


def test_what_lies_beside_the_weights_travels_along(written: Callable[[str], Path], tmp_path: Path) -> None:
    config = {**read_config(written("nemotron")), "auto_map": {"AutoConfig": "configuration_nemotron_h.Config"}}
    config |= {"eos_token_id": 11, "max_position_embeddings": 262144}
    source = write_folder(tmp_path / "in", config, read_folder(written("nemotron")), shards=2)
    for i, name in enumerate(SIDE_FILES):
        (source / name).write_bytes(bytes([i, 0xC3, 0xA9, 13, 10]))
    (source / "optimizer.pt").write_bytes(b"not ours")
    save_hf(tmp_path / "out", *load_hf(source), source=source)
    for i, name in enumerate(SIDE_FILES):
        assert (tmp_path / "out" / name).read_bytes() == bytes([i, 0xC3, 0xA9, 13, 10]), name
    assert not (tmp_path / "out" / "optimizer.pt").exists()
    written_config = read_config(tmp_path / "out")
    for name in ("auto_map", "eos_token_id", "max_position_embeddings", "bos_token_id", "time_step_min"):
        assert written_config[name] == config[name]


def test_a_clamp_of_dt_is_part_of_the_function_and_travels_along(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    config = {**read_config(written("nemotron")), "time_step_limit": [0.01, 0.2]}
    source = write_folder(tmp_path / "in", config, read_folder(written("nemotron")))
    clamped, params = load_hf(source)
    assert clamped.time_step_limit == (0.01, 0.2)
    for options in ({"source": source}, {}):
        save_hf(tmp_path / "out", clamped, params, **options)
        assert load_hf(tmp_path / "out")[0] == clamped


def test_multi_token_prediction_is_dropped_or_kept(written: Callable[[str], Path], tmp_path: Path) -> None:
    plain = read_folder(written("nemotron"))
    row = ("F32", (32,), np.arange(32, dtype=np.float32).tobytes())
    extra = {f"mtp.layers.0.{name}.weight": row for name in ("enorm", "hnorm", "norm")}
    config = {**read_config(written("nemotron")), "num_nextn_predict_layers": 1}
    source = write_folder(tmp_path / "in", config, plain | extra, shards=2)
    loaded = load_hf(source)
    save_hf(tmp_path / "dropped", *loaded, source=source)
    assert read_folder(tmp_path / "dropped") == plain
    assert read_config(tmp_path / "dropped")["num_nextn_predict_layers"] == 0
    save_hf(tmp_path / "kept", *loaded, source=source, keep_mtp=True)
    assert read_folder(tmp_path / "kept") == plain | extra
    assert read_config(tmp_path / "kept")["num_nextn_predict_layers"] == 1


def test_tied_folders_that_ship_the_head_all_the_same(written: Callable[[str], Path], tmp_path: Path) -> None:
    plain = read_folder(written("qwen3"))
    dtype, shape, data = plain["model.embed_tokens.weight"]
    config = read_config(written("qwen3"))
    shipped = {**plain, "lm_head.weight": (dtype, shape, data)}
    source = write_folder(tmp_path / "same", config, shipped)
    loaded = load_hf(source)
    assert "head" not in loaded[1]
    save_hf(tmp_path / "out", *loaded, source=source)
    assert read_folder(tmp_path / "out") == shipped
    save_hf(tmp_path / "once", *loaded)
    assert read_folder(tmp_path / "once") == plain

    # A head of its own: transformers takes it for what it is, whatever the config says.
    other = {**plain, "lm_head.weight": (dtype, shape, data[4:] + data[:4])}
    source = write_folder(tmp_path / "other", config, other)
    untied, params = load_hf(source)
    assert not untied.tied_embeddings
    save_hf(tmp_path / "untied", untied, params, source=source)
    assert read_folder(tmp_path / "untied") == other
    want = reference.transformers.AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    got = reference.load(tmp_path / "untied")
    assert not got.config.tie_word_embeddings
    np.testing.assert_array_equal(reference.logits(got, IDS), reference.logits(want.eval(), IDS))


def test_rows_of_zeros_are_repaired_when_asked(written: Callable[[str], Path], tmp_path: Path) -> None:
    """Base checkpoints hold zeros for special tokens that pre-training never saw."""
    tensors = read_folder(written("nemotron"))
    dtype, shape, data = tensors["backbone.embeddings.weight"]
    embedding = np.frombuffer(data, np.float32).reshape(shape).copy()
    embedding[[3, 11]] = 0
    embedding[11, 0] = 5e-4  # not exactly zero, and too small all the same
    tensors["backbone.embeddings.weight"] = (dtype, shape, embedding.tobytes())
    source = write_folder(tmp_path / "in", read_config(written("nemotron")), tensors)
    _, as_it_is = load_hf(source)
    np.testing.assert_array_equal(as_it_is["embedding"], embedding)
    _, repaired = load_hf(source, repair_embeddings=True)
    got, others = np.asarray(repaired["embedding"]), np.delete(np.arange(shape[0]), [3, 11])
    np.testing.assert_array_equal(got[others], embedding[others])
    norms = np.linalg.norm(got, axis=-1)
    assert np.isfinite(got).all()
    assert (norms[[3, 11]] > 1e-2).all()
    assert (norms[[3, 11]] < 2 * norms[others].max()).all()
    np.testing.assert_array_equal(repaired["head"], as_it_is["head"])
