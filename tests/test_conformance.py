"""Checks of a checkpoint: a healthy one passes all of them, and each planted fault fails its own alone."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cascade_jax import conformance
from cascade_jax.checkpoint import save_model
from cascade_jax.config import ModelConfig, OptimizerConfig
from cascade_jax.conformance import memory
from cascade_jax.conformance.numerics import row_length
from cascade_jax.data import tokenizer as tokenizers
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from cascade_jax.data.templates import CHATML
from cascade_jax.model import apply, presets
from cascade_jax.model.convert import save_hf, tensor_shapes
from cascade_jax.optimizer import make_optimizer
from launch import doctor, examine

TINY = dataclasses.replace(
    presets.get("tiny"), pattern="ME*", attention_bias=True, width=32, experts=4, expert_width=16, chunk=32
)
CALL = "<tool_call>\n<function=weather>\n<parameter=place>\nOslo\n</parameter>\n</function>\n</tool_call>\n"


def random_params(config: ModelConfig) -> dict:
    """Every weight at random and large enough that it matters; norms about 1."""
    rng = np.random.default_rng(0)

    def leaf(path, like):
        noise = rng.standard_normal(like.shape)
        return (1 + 0.1 * noise if "norm" in path[-1].key else 0.2 * noise).astype(like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, apply.abstract(config))


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model").path


@pytest.fixture(scope="module")
def chat(tokenizer_file):
    return Chat(tokenizers.load(tokenizer_file))


@pytest.fixture(scope="module")
def shown(chat):
    return conformance.example(chat)


@pytest.fixture(scope="module")
def params():
    return random_params(TINY)


@pytest.fixture
def checkpoint(tmp_path, tokenizer_file, params):
    """A folder that a test may spoil."""
    save_model(tmp_path / "final", TINY, params, tokenizer=tokenizer_file)
    return tmp_path / "final"


def changed(params: dict, path: str, change) -> dict:
    """A copy with one weight replaced by change(weight), or by the copy of it that `change` wrote into."""
    name, _, rest = path.partition("/")
    if rest:
        return {**params, name: changed(params[name], rest, change)}
    copy = params[name].copy()
    result = change(copy)
    return {**params, name: copy if result is None else result}


def put(place, value):
    """A change: `value` at that place."""
    return lambda weight: weight.__setitem__(place, value)


def lines(capsys, checkpoint: Path) -> tuple[int, list[str]]:
    code = doctor.main([str(checkpoint)])
    out = capsys.readouterr().out
    return code, [line for line in out.splitlines() if line.startswith(("ok ", "problem "))]


# The template


def test_nemotron3_holds_but_for_thoughts_of_the_past(chat):
    held, anew = conformance.prefixes(chat, thinking=False), conformance.prefixes(chat, thinking=True)
    assert held.ok and held.text == "5 of 5 prefixes hold"
    assert anew.ok and anew.text.startswith("4 of 5 prefixes hold; assistant turn 2 is rendered anew from token ")
    messages = conformance.template.conversation(thinking=True)
    before = chat.render(messages[:4], [conformance.template.TOOL]).ids.tolist()
    after = chat.render(messages[:5], [conformance.template.TOOL]).ids.tolist()
    place = int(anew.text.split("from token ")[1].split()[0])
    assert before[:place] == after[:place] and before[place] != after[place]
    assert chat.tokenizer.decode(before[:place]).endswith("<|im_start|>assistant\n<think>")


def test_the_loss_mask_shows_what_the_assistant_wrote(chat, shown):
    finding = conformance.loss_mask(chat, shown)
    trained = [span.text for span in conformance.spans(chat.tokenizer, shown.rendered) if span.trained]
    text = "".join(trained)
    # Thoughts before the last user turn are gone, and the prompt gives what opens the last one.
    assert text == (
        f"I will look.\n{CALL}<|im_end|>\nIt is raining, at 4 degrees.<|im_end|>"
        "Four is not much.\n</think>\nNo, that is cold.<|im_end|>"
    )
    whole = "".join(span.text for span in conformance.spans(chat.tokenizer, shown.rendered))
    assert whole == chat.tokenizer.decode(shown.rendered.ids.tolist())
    assert finding.ok and f"{shown.rendered.trained.sum()} of {len(shown.rendered.ids)} tokens" in finding.text
    spoilt = shown._replace(rendered=shown.rendered._replace(trained=np.roll(shown.rendered.trained, -40)))
    assert not conformance.loss_mask(chat, spoilt).ok


def with_template(tokenizer_file: Path, folder: Path, template: str) -> Chat:
    (folder / "tokenizer.model").write_bytes(tokenizer_file.read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return Chat(tokenizers.load(folder))


def test_a_template_that_rewrites_earlier_turns(tokenizer_file, tmp_path):
    chat = with_template(tokenizer_file, tmp_path, "{{ messages | length }}" + CHATML)
    finding = conformance.prefixes(chat, thinking=False)
    assert not finding.ok and "rewrites earlier turns" in finding.text and "chat_template.jinja" in finding.fix


def test_a_template_that_hides_an_answer(tokenizer_file, tmp_path):
    chat = with_template(tokenizer_file, tmp_path, CHATML.replace("message.content", "message.content[:9]"))
    finding = conformance.loss_mask(chat, conformance.example(chat))
    assert not finding.ok and "'No, that is cold.' is not trained" in finding.text


def test_a_template_without_tools_says_so(tokenizer_file, tmp_path):
    chat = with_template(tokenizer_file, tmp_path, CHATML)
    shown = conformance.example(chat)
    assert conformance.template_file(chat.tokenizer).text == "chat_template.jinja gives the template"
    assert shown.thinking and "does not write tools, tool calls, thoughts" in conformance.features(chat, shown).text
    assert conformance.prefixes(chat, thinking=True).text == "5 of 5 prefixes hold"


# Where an answer ends


def test_stop_ids_of_the_files(chat, shown, tmp_path):
    end = chat.tokenizer.token_id("<|im_end|>")
    assert conformance.engine_stops(chat, shown).ok
    assert conformance.file_stops(chat, shown, conformance.declared_stops(tmp_path)).ok
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    finding = conformance.file_stops(chat, shown, conformance.declared_stops(tmp_path))
    assert (
        not finding.ok and f"config.json stops at '</s>' (2), but turns end with '<|im_end|>' ({end})" in finding.text
    )
    assert f'"eos_token_id": [2, {end}]' in finding.fix
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, end]}))
    assert conformance.file_stops(chat, shown, conformance.declared_stops(tmp_path)).ok
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 151645}')
    finding = conformance.file_stops(chat, shown, conformance.declared_stops(tmp_path))
    assert not finding.ok and "(151645)" in finding.text and f'"eos_token_id": [{end}]' in finding.fix
    assert "would not stop. To mend:" in str(finding) or "tokens. To mend:" in str(finding)
    for wrong in ('{"eos_token_id": 2.5}', '{"eos_token_id": ["a"]}', "[]"):
        (tmp_path / "generation_config.json").write_text(wrong)
        with pytest.raises(ValueError, match=r"generation_config\.json"):
            conformance.declared_stops(tmp_path)


def test_a_vocabulary_without_the_end_token(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    model.pre_tokenizer, model.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model.save(str(tmp_path / "tokenizer.json"))
    chat = Chat(tokenizers.load(tmp_path))
    assert not conformance.template_file(chat.tokenizer).ok
    finding = conformance.engine_stops(chat, conformance.example(chat))
    assert not finding.ok and "no special token" in finding.text and "end token" in finding.fix


# The weights


def test_faults_of_weights_are_named(params, chat, shown):
    used = conformance.written(chat, shown)
    end = chat.tokenizer.token_id("<|im_end|>")
    pad = changed(params, "embedding", put([1, TINY.vocab_size - 1], 0.0))
    silent = changed(params, "embedding", put(end, 1e-5))
    broken = changed(params, "layers/1/mixer/up", put((0, 1, 2), np.nan))
    coarse = changed(params, "layers/1/mixer/router_bias", lambda bias: bias.astype(jnp.bfloat16))
    assert conformance.finite(params).ok and conformance.router_bias(params).ok
    assert conformance.router_bias({"embedding": params["embedding"]}) is None
    assert "2 that it does not write are" in conformance.zero_embeddings(pad, chat.tokenizer, used).text
    for finding, named in (
        (conformance.zero_embeddings(silent, chat.tokenizer, used), f"'<|im_end|>' ({end})"),
        (conformance.finite(broken), "in layers/1/mixer/up"),
        (conformance.router_bias(coarse), "layers/1/mixer/router_bias (bfloat16)"),
    ):
        assert not finding.ok and named in finding.text and finding.fix


# The numbers


def test_ways_that_agree_and_weights_that_make_them_differ(params, shown):
    """A key bias changes nothing in theory, but scores this large keep no digits for what does."""
    biased = changed(params, "layers/2/mixer/k_bias", lambda bias: bias + 1e5)
    huge = changed(params, "layers/2/mixer/o_proj", lambda o: 1e38 * o)
    for check, spoilt in (
        (conformance.decode_path, biased),
        (conformance.sampler_gap, biased),
        (conformance.packing, huge),
    ):
        # Put on the device as a loaded checkpoint is, so that the test of the command finds the programs compiled.
        placed = [jax.device_put(weights, jax.devices()[0]) for weights in (params, spoilt)]
        good, bad = (check(TINY, weights, shown.rendered.ids) for weights in placed)
        assert good.ok and " by 0.0e+00" not in good.text and not good.fix, str(good)
        assert not bad.ok and bad.fix, str(bad)


def test_probe_rows_pass_a_chunk_of_the_mamba_layers():
    assert row_length(presets.get("nemotron-3-nano-30b-a3b")) > 128
    assert row_length(presets.get("smollm2-135m")) == 64


# Memory


def test_memory_of_the_30b():
    config = presets.get("nemotron-3-nano-30b-a3b")
    assert memory.weights_per_device(config, {}) == 31_577_940_288
    experts = 23 * 128 * 2 * 2688 * 1856
    whole = 23 * (64 * 3 + 4096 + (4096 + 2 * 8 * 128) * (4 + 1) + 128)  # not split: no dimension of theirs is `embed`
    split = 31_577_940_288 - experts - whole
    assert memory.weights_per_device(config, {"expert": 8, "fsdp": 4}) == (experts + split) // 32 + whole
    assert memory.weights_per_device(config, {"fsdp": 1024}) is None  # 2688 does not divide by it
    # 6 layers, keys and values, 2 heads of 128, 2 bytes; 23 layers, float32 states, and 3 inputs of 6144 channels
    assert memory.cache_size(config).text.startswith(f"{6 * 2 * 2 * 128 * 2 * 1000 / 2**20:.3g} MiB for each 1,000")
    assert f"{23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2) / 2**20:.3g} MiB for the states" in memory.cache_size(config).text
    by_name = {finding.name: finding.text for finding in memory.by_mesh(config)}
    assert by_name["memory, fsdp 1"].startswith("58.8 GiB to sample") and "trains on none" in by_name["memory, fsdp 1"]
    assert by_name["memory, fsdp 8"].endswith("trains on an 80 GB GPU") and "memory, fsdp 16" not in by_name


def test_training_holds_the_bytes_that_memory_counts():
    abstract = apply.abstract(TINY)
    moments = jax.eval_shape(make_optimizer(OptimizerConfig(), total_steps=1).init, abstract)
    size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))  # noqa: E731
    counted = memory.TRAINED * memory.weights_per_device(TINY, {})
    assert abs(counted - (2 * size(abstract) + size(moments))) < 0.01 * counted


# The command


def test_a_healthy_checkpoint(checkpoint, capsys):
    code, found = lines(capsys, checkpoint)
    assert code == 0 and all(line.startswith("ok ") for line in found)
    assert len({line[9:33] for line in found}) == len(found) >= 15


def test_each_fault_is_one_line(checkpoint, capsys, params, tokenizer_file):
    end = tokenizers.load(tokenizer_file).token_id("<|im_end|>")
    spoilt = changed(params, "embedding", put(end, 0.0))
    save_model(checkpoint, TINY, spoilt, tokenizer=tokenizer_file)
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2}')
    code, found = lines(capsys, checkpoint)
    problems = [line for line in found if line.startswith("problem")]
    assert code == 1 and len(problems) == 2
    assert "generation_config.json stops at" in problems[0] and "To mend:" in problems[0]
    assert "'<|im_end|>'" in problems[1] and "repair_embeddings" in problems[1]


def test_a_hugging_face_folder_that_is_cut(tmp_path, capsys, params):
    """Without a tokenizer, and looked at in two ways: loaded, and by its headers where memory is short."""
    save_hf(tmp_path / "hf", TINY, params)
    headers = lambda: [*examine.weights(tmp_path / "hf", TINY, None, None, memory=1000)]  # noqa: E731
    numbers, tensors = headers()
    assert numbers.ok and "not looked at" in numbers.text
    needed = len(tensor_shapes(TINY)) - 1  # the head is the embedding again
    assert tensors.ok and f"all {needed} that config.json asks for are there" in tensors.text
    file = tmp_path / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    assert not headers()[1].ok and "model.safetensors" in headers()[1].text
    code, found = lines(capsys, tmp_path / "hf")
    problems = [line for line in found if line.startswith("problem")]
    assert code == 1 and len(problems) == 2
    assert "copy one there" in problems[0] and "model.safetensors" in problems[1]


def test_a_real_process_exits_with_1_and_marks_the_mask(checkpoint, params, tokenizer_file):
    spoilt = changed(params, "layers/1/mixer/up", put((0, 1, 2), np.nan))
    save_model(checkpoint, TINY, spoilt, tokenizer=tokenizer_file)
    done = subprocess.run(
        [sys.executable, "-m", "launch.doctor", str(checkpoint)],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert done.returncode == 1, done.stderr
    assert len(problems) == 1 and "layers/1/mixer/up" in problems[0]
    assert "«I will look." in done.stdout and "No, that is cold.<|im_end|>»" in done.stdout


def test_what_is_no_checkpoint_is_one_sentence(tmp_path, capsys):
    assert doctor.main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert doctor.main([str(tmp_path)]) == 2
    assert "gpt2" in capsys.readouterr().err
