"""A user's mistake: one sentence, exit code 2, before any training step, and nothing lost."""

import json
import shutil
from pathlib import Path

import pytest

from tests.runs.conftest import MICRO


def fails(launch, workdir: Path, *arguments: str, config: str = MICRO, devices: int = 1) -> str:
    process = launch("launch.run", config, *arguments, f"--workdir={workdir}", devices=devices)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert "Traceback" not in output
    message = output.strip().splitlines()[-1]
    assert message.startswith("error: "), output
    assert not list(workdir.glob("stages/*/metrics.jsonl"))
    return message


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.stages.mopd.stepz=3", "stepz is not a setting; did you mean steps?"),
        ("--config.stages.sft.export=True", "export is not a setting; did you mean export_hf?"),
        ("--config.nonsense=1", "nonsense is not a setting; see --help"),
        ("--config.buckets=(8,)", "no prompt of the domain"),
        ("--config.mesh.fsdp=3", "fsdp 3 * expert 1 * tensor 1 * context 1 needs 3 devices and there are 1"),
        ("--config.stages.mopd.steps=many", "many"),
        ("--config.stages.mopd.distill.teachers.math=rlhf", "is not yet trained when mopd starts"),
        ("--config.stages.if_rl.parent=nowhere", "parent='nowhere' is not trained before if_rl"),
        ("--config.tokenizer=missing/tokenizer.json", "missing/tokenizer.json"),
        ("--config.checkpoint=missing", "set exactly one"),
        ("--config.model=huge", "huge"),
        ("--config.stages.rlhf.length=64", "cannot hold a prompt"),
        ("--confg=x", "confg"),
        ("stray", "stray"),
    ],
)
def test_a_wrong_setting(launch, tmp_path: Path, argument: str, words: str):
    assert words in fails(launch, tmp_path / "run", argument)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--config.mesh.tensor=8",), "tensor=8 does not divide heads=4"),
        (
            ("--config.mesh.context=8", "--config.stages.sft.length=132"),
            "context=8 does not divide stages.sft.length=132",
        ),
    ],
)
def test_a_mesh_that_does_not_divide(launch, tmp_path: Path, arguments: tuple[str, ...], words: str):
    assert words in fails(launch, tmp_path / "run", *arguments, devices=8)


@pytest.mark.parametrize("written", [("--config=nowhere.py",), ("--config", "nowhere.py")])
def test_a_missing_config_file(launch, tmp_path: Path, written: tuple[str, ...]):
    first, *more = written
    assert "there is no config file 'nowhere.py'" in fails(launch, tmp_path / "run", *more, config=first)


def test_help(launch):
    process = launch("launch.run", "--help")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert all(word in output for word in ("--config.X.Y=VALUE", "--workdir", "cascade_jax/config/run.py"))


def spoiled(start: Path, folder: Path, name: str, text: str | None) -> str:
    """The setting of a copy of the checkpoint in which this file has that text, or is missing."""
    shutil.copytree(start, folder)
    (folder / name).unlink(missing_ok=True)
    if text is not None:
        (folder / name).write_text(text)
    return f"--config.checkpoint={folder}"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer.model", None, "has no tokenizer; copy its tokenizer.json or tokenizer.model there"),
        ("chat_template.jinja", "{{ messages[0].foo.bar }}", "chat_template.jinja cannot write this conversation"),
        ("generation_config.json", "[]", "generation_config.json holds a list"),
    ],
)
def test_a_file_beside_the_weights(launch, start: Path, tmp_path: Path, name: str, text: str | None, words: str):
    checkpoint = spoiled(start, tmp_path / "model", name, text)
    settings = ("--config.model=", "--config.template=auto", checkpoint)
    assert words in fails(launch, tmp_path / "run", *settings)


def test_a_row_that_breaks_the_schema_is_named_by_its_line(launch, tmp_path: Path):
    data = tmp_path / "rows.jsonl"
    good = {"responses_create_params": {"input": "1 + 1?"}, "question": "1 + 1?", "expected_answer": "2"}
    data.write_text(f"{json.dumps(good)}\n{json.dumps({'question': 'x'})}\n")
    settings = ["--config.domains.math.train.kind=jsonl", f"--config.domains.math.train.path={data}"]
    message = fails(launch, tmp_path / "run", *settings)
    assert "rows.jsonl" in message and "2" in message


def test_a_tokenizer_that_is_larger_than_the_vocabulary(launch, tmp_path: Path):
    from cascade_jax.data.tokenizer import train_sentencepiece

    words = [" ".join(f"{a}{b}{c}" for c in "abcdefgh") for a in "klmnopqr" for b in "stuvwxyz"]
    tokenizer = tmp_path / "tokenizer.model"
    train_sentencepiece(words * 4, tokenizer, vocab_size=640)
    message = fails(launch, tmp_path / "run", f"--config.tokenizer={tokenizer}")
    assert "640" in message and "vocabulary is 512" in message


def test_a_directory_with_something_else_in_it(launch, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "is no run directory and not empty (it holds thesis.txt)" in fails(launch, tmp_path)
    assert (tmp_path / "thesis.txt").exists()
