"""The command that talks to a checkpoint, on a saved one."""

import dataclasses
import io

import pytest

from cascade_jax.checkpoint import save_model
from cascade_jax.data.tasks import train_tokenizer
from launch import sample

from .conftest import LLAMA, random_params

SHORT = ["--max_tokens", "4"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(folder / "tokenizer.model")
    config = dataclasses.replace(LLAMA, vocab_size=tokenizer.vocab_size)
    save_model(folder / "final", config, random_params(config), tokenizer=tokenizer.path)
    save_model(folder / "bare", config, random_params(config), tokenizer=None)
    return folder / "final"


def run(capsys, *arguments):
    code = sample.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_it_answers_and_continues(checkpoint, capsys):
    greedy = [checkpoint, "--prompt", "2 + 3", "--temperature", "0", *SHORT]
    code, answer, err = run(capsys, *greedy)
    assert code == 0 and err == "" and answer.strip()
    assert run(capsys, *greedy) == (0, answer, "")
    code, raw, _ = run(capsys, *greedy, "--raw")
    assert code == 0 and raw != answer


def test_each_line_of_the_input_is_a_turn(checkpoint, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("red\n\nblue\n"))
    code, out, err = run(capsys, checkpoint, "--seed", "3", *SHORT)
    assert code == 0 and err == "" and out.strip()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--temperature", "-1"], "temperature=-1.0 must not be negative"),
        (["--raw", "--prompt", ""], "--prompt is empty"),
    ],
)
def test_mistakes_are_one_sentence(checkpoint, capsys, change, message):
    code, out, err = run(capsys, checkpoint, "--prompt", "2 + 3", *SHORT, *change)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_what_is_no_checkpoint_is_refused(checkpoint, capsys, tmp_path):
    code, _, err = run(capsys, tmp_path, "--prompt", "a")
    assert code == 2 and "is no checkpoint" in err
    code, _, err = run(capsys, checkpoint.with_name("bare"), "--prompt", "a")
    assert code == 2 and "has no tokenizer" in err
