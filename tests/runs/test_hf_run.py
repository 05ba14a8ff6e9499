"""A Hugging Face folder in, a Hugging Face folder out, by the commands that a user types."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import numpy as np
import pytest

from cascade_jax.checkpoint import load_model
from cascade_jax.model.convert import load_hf
from cascade_jax.model.convert.files import read_folder

torch = pytest.importorskip("torch", reason="torch and transformers are the reference here; they need Python 3.11")
transformers = pytest.importorskip("transformers")

CONFIG = "--config=tests/runs/from_folder.py"
IN_PROJ = "backbone.layers.0.mixer.in_proj.weight"


@pytest.fixture(scope="module")
def source(launch: Callable, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in bfloat16, with settings and side files that nobody here writes."""
    folder = tmp_path_factory.mktemp("hf") / "source"
    made = launch("launch.convert", f"--checkpoint={start}", "--to_hf", "--dtype=bfloat16", f"--output={folder}")
    output, _ = made.communicate(timeout=120)
    assert made.returncode == 0, output
    (folder / "generation_config.json").write_text('{"eos_token_id": [4]}')
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "bos_token_id": 1, "something_of_theirs": [1, 2]}))
    return folder


@pytest.fixture(scope="module")
def stage(launch: Callable, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stage that trained adapters on that folder."""
    workdir = tmp_path_factory.mktemp("from_folder") / "run"
    run = launch("launch.run", CONFIG, f"--workdir={workdir}", f"--config.checkpoint={source}")
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output
    return workdir / "stages" / "sft"


def test_the_export_differs_from_the_source_in_values_alone(source: Path, stage: Path) -> None:
    exported = stage / "hf"
    assert json.loads((exported / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    for name in ("tokenizer.model", "generation_config.json"):
        assert (exported / name).read_bytes() == (source / name).read_bytes()
    before, after = read_folder(source).tensors, read_folder(exported).tensors
    kinds = [{name: (t.dtype, t.shape) for name, t in tensors.items()} for tensors in (before, after)]
    assert kinds[0] == kinds[1]
    assert (after[IN_PROJ].read() != before[IN_PROJ].read()).any()
    # Trained in float32, rounded once at the end.
    trained = load_model(stage / "checkpoints" / "final")[1]
    rounded = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), trained)
    jax.tree.map(np.testing.assert_array_equal, load_hf(exported)[1], rounded)


def test_the_export_is_of_use(launch: Callable, stage: Path) -> None:
    _, info = transformers.AutoModelForCausalLM.from_pretrained(stage / "hf", output_loading_info=True)
    assert not any(info.values()), info
    spoken = launch("launch.sample", str(stage / "hf"), "--prompt=What is 1+1?", "--max_tokens=3", "--temperature=0")
    output, _ = spoken.communicate(timeout=120)
    assert spoken.returncode == 0, output


def test_peft_makes_the_same_of_the_adapters(source: Path, stage: Path) -> None:
    peft = pytest.importorskip("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, stage / "adapter")
    assert adapted.peft_config["default"].base_model_name_or_path == str(source)
    merged = adapted.merge_and_unload().state_dict()
    mixer = load_model(stage / "checkpoints" / "final")[1]["layers"]["0"]["mixer"]
    parts = [mixer[f"{part}_proj"] for part in ("z", "x", "B", "C", "dt")]
    theirs = merged[IN_PROJ.replace("backbone", "model")].numpy()
    np.testing.assert_allclose(theirs.T, np.concatenate(parts, axis=1), atol=1e-6)
    before = read_folder(source).tensors[IN_PROJ].read().astype(np.float32)
    assert np.abs(theirs - before).max() > 1e-4


def test_a_broken_folder_ends_the_run_before_it_begins(launch: Callable, source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    run = launch("launch.run", CONFIG, f"--workdir={tmp_path / 'run'}", f"--config.checkpoint={broken}")
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 2
    assert "model.safetensors" in output and "is cut off" in output
    assert len(output.strip().splitlines()) == 1
