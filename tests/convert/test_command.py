"""`python -m launch.convert` between a Hugging Face folder and a checkpoint of ours."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cascade_jax.checkpoint import load_model
from launch import convert
from tests.convert.files import read_config, read_folder, write_folder


def test_there_and_back(written: Callable[[str], Path], tmp_path: Path) -> None:
    source = written("qwen3-moe-normed")
    (source / "tokenizer.json").write_text('{"model": "theirs"}')
    assert convert.main([f"--hf={source}", f"--output={tmp_path / 'ours'}"]) == 0
    assert convert.main([f"--checkpoint={tmp_path / 'ours'}", "--to_hf", f"--output={tmp_path / 'theirs'}"]) == 0
    assert read_folder(tmp_path / "theirs") == read_folder(source)
    assert read_config(tmp_path / "theirs")["torch_dtype"] == "bfloat16"
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
        ([f"--hf={source}", f"--output={source}", "--to_hf", "--overwrite"], "is the source itself"),
    ):
        assert convert.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
        assert not (tmp_path / "new").exists()
