"""`python -m launch.convert` between a Hugging Face folder and a checkpoint of ours."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cascade_jax.checkpoint import load_model
from cascade_jax.model.convert import CheckpointError, load_hf, save_hf
from launch import convert
from tests.convert.files import read_config, read_folder, write_folder


def test_there_and_back(written: Callable[[str], Path], tmp_path: Path) -> None:
    source = written("qwen3-moe-normed")
    (source / "tokenizer.json").write_text('{"model": "theirs"}')
    assert convert.main([f"--hf={source}", f"--output={tmp_path / 'ours'}"]) == 0
    assert convert.main([f"--checkpoint={tmp_path / 'ours'}", "--to_hf", f"--output={tmp_path / 'theirs'}"]) == 0
    assert read_folder(tmp_path / "theirs") == read_folder(source)
    assert read_config(tmp_path / "theirs")["dtype"] == "bfloat16"
    for folder in ("ours", "theirs"):
        assert (tmp_path / folder / "tokenizer.json").read_text() == '{"model": "theirs"}'


def test_rows_are_repaired_on_the_way(written: Callable[[str], Path], tmp_path: Path) -> None:
    tensors = read_folder(written("nemotron"))
    dtype, shape, data = tensors["backbone.embeddings.weight"]
    row = len(data) // shape[0]
    zeroed = {**tensors, "backbone.embeddings.weight": (dtype, shape, bytes(row) + data[row:])}
    source = write_folder(tmp_path / "in", read_config(written("nemotron")), zeroed)
    assert convert.main([f"--hf={source}", "--repair_embeddings", f"--output={tmp_path / 'out'}"]) == 0
    embedding = np.asarray(load_model(tmp_path / "out")[1]["embedding"])
    np.testing.assert_allclose(embedding[0], embedding[1:].mean(0), atol=1e-6)


def test_mistakes(written: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written("qwen3")
    capsys.readouterr()  # what transformers says while it writes
    for arguments, message in (
        ([f"--checkpoint={source}", f"--output={tmp_path / 'new'}"], "is a Hugging Face folder; give it as --hf."),
        ([f"--hf={tmp_path / 'nowhere'}", f"--output={tmp_path / 'new'}"], "is no Hugging Face checkpoint"),
        ([f"--hf={source}", f"--output={source}", "--to_hf"], "exists already; give another --output"),
        ([f"--hf={source}", f"--output={source}", "--to_hf", "--overwrite"], "is or holds the source"),
    ):
        assert convert.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
        assert not (tmp_path / "new").exists()


def test_settings_that_the_network_does_not_know_survive_the_way_through_ours(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    values = {**read_config(written("llama")), "max_position_embeddings": 777, "eos_token_id": [3, 5]}
    source = write_folder(tmp_path / "in", values, read_folder(written("llama")))
    assert convert.main([f"--hf={source}", f"--output={tmp_path / 'ours'}"]) == 0
    assert convert.main([f"--checkpoint={tmp_path / 'ours'}", "--to_hf", f"--output={tmp_path / 'theirs'}"]) == 0
    assert convert.main([f"--hf={source}", "--to_hf", "--dtype=bfloat16", f"--output={tmp_path / 'rounded'}"]) == 0
    for name in ("theirs", "rounded"):
        found = read_config(tmp_path / name)
        assert (found["max_position_embeddings"], found["eos_token_id"]) == (777, [3, 5])
        assert not (tmp_path / name / "hf_config.json").exists()


@pytest.mark.parametrize("precious", ["manifest.json", "stages"])
def test_a_run_is_never_replaced(written: Callable[[str], Path], tmp_path: Path, precious: str) -> None:
    run = tmp_path / "run"
    (run / "stages").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "manifest.json").write_text("{}")
    assert convert.main([f"--hf={written('llama')}", f"--output={run}", "--to_hf", "--overwrite"]) == 2
    assert (run / precious).exists()


def test_the_source_is_never_replaced(written: Callable[[str], Path], tmp_path: Path) -> None:
    source = write_folder(tmp_path / "parent" / "source", read_config(written("llama")), read_folder(written("llama")))
    (tmp_path / "parent" / "config.json").write_text("{}")
    (tmp_path / "parent" / "old.safetensors").write_text("")
    for output in (source, tmp_path / "parent"):
        for more in ([], ["--to_hf"], ["--to_hf", "--dtype=bfloat16"]):
            assert convert.main([f"--hf={source}", f"--output={output}", "--overwrite", *more]) == 2
    assert read_folder(source) == read_folder(written("llama"))


def test_what_a_link_points_to_is_replaced(written: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert convert.main([f"--hf={written('llama')}", f"--output={tmp_path / 'link'}", "--to_hf", "--overwrite"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert read_folder(tmp_path / "real") == read_folder(written("llama"))


def test_nothing_is_written_of_weights_that_are_not_numbers_or_not_of_the_config(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    config, params = load_hf(written("llama"))
    for embedding, message in (
        (params["embedding"].at[0, 0].set(np.nan), r"model\.embed_tokens\.weight holds NaN"),
        (params["embedding"][:5], r"embedding has shape \(5, "),
    ):
        with pytest.raises(CheckpointError, match=message):
            save_hf(tmp_path / "out", config, {**params, "embedding": embedding})
    with pytest.raises(CheckpointError, match="head is missing"):
        save_hf(tmp_path / "out", config, {key: leaf for key, leaf in params.items() if key != "head"})
    assert not list(tmp_path.iterdir())
