"""An export that is killed leaves what was there, or all of what is new; never a part of it that looks whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cascade_jax.model.convert import load_hf, save_hf
from tests.convert.files import Tensors, read_files, read_folder, write_folder
from tests.convert.test_refusals import CONFIG, tensors

ROOT = Path(__file__).parents[2]

# Forks once per moment: the fork exports, and kills itself when it is about to touch the disk for the n-th time.
# What is printed: a line per fork that was killed. The first fork that is not is the last one.
CHILD = """
import os, signal, sys
from cascade_jax.model.convert import load_hf, save, save_hf

new, work = sys.argv[1:]
save.SHARD_BYTES = 500  # several files
TOUCHES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree",
           "shutil.copyfile", "shutil.move", "os.truncate"}

def export(moment):
    config, params = load_hf(new)
    touches = 0

    def watch(event, arguments):
        nonlocal touches
        writes = event == "open" and str(arguments[0]).startswith(work) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in TOUCHES or writes:
            if touches == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            touches += 1

    sys.addaudithook(watch)
    save_hf(f"{work}/{moment}/target", config, params, source=new)

for moment in range(200):
    fork = os.fork()
    if fork == 0:
        export(moment)
        os._exit(0)
    status = os.waitpid(fork, 0)[1]
    print(moment, os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


def other(held: Tensors) -> Tensors:
    return {name: (dtype, shape, data[2:] + data[:2]) for name, (dtype, shape, data) in held.items()}


@pytest.mark.parametrize("replaces", [False, True])
def test_killed_at_every_touch_of_the_disk(replaces: bool, tmp_path: Path) -> None:
    old, new = tensors(), other(tensors())
    source, work = write_folder(tmp_path / "new", CONFIG, new, shards=3), tmp_path / "work"
    (source / "tokenizer.json").write_text("{}")
    work.mkdir()
    for moment in range(200):
        (work / str(moment)).mkdir()
        if replaces:
            write_folder(work / str(moment) / "target", CONFIG, old, shards=2)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILD, str(source), str(work)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    ends = [int(line.split()[1]) for line in child.stdout.splitlines()]
    assert ends[-1] == 0, child.stderr
    assert set(ends[:-1]) == {9}
    assert len(ends) > 4

    for moment in range(len(ends)):
        entries = sorted((work / str(moment)).iterdir())
        whole = {entry.name: read_files(entry)[0] for entry in entries if is_read(entry)}
        assert all(held in (old, new) for held in whole.values()), (moment, entries)
        # Others are less strict than we are. Only of the old one may a part be left, once the new one is in its place.
        assert "target" in whole or all(entry.name in whole for entry in entries if looks_whole(entry)), moment
        if replaces:
            assert old in whole.values() or whole.get("target") == new, (moment, entries)
    assert read_folder(work / str(len(ends) - 1) / "target") == new
    assert [entry.name for entry in (work / str(len(ends) - 1)).iterdir()] == ["target"]

    again = work / str(len(ends) // 2)  # leftovers are in nobody's way
    save_hf(again / "target", *load_hf(source), source=source)
    assert read_folder(again / "target") == new
    assert [entry.name for entry in again.iterdir()] == ["target"]


def looks_whole(entry: Path) -> bool:
    return (entry / "config.json").exists() and any(entry.glob("*.safetensors"))


def is_read(entry: Path) -> bool:
    try:
        load_hf(entry)
    except (ValueError, FileNotFoundError):
        return False
    return True


@pytest.mark.parametrize("occupant", ["notes.txt", "config.json"])
def test_only_a_checkpoint_is_replaced(occupant: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", CONFIG, tensors())
    target = tmp_path / "precious"
    target.mkdir()
    (target / occupant).write_text('{"of": "something else"}')
    with pytest.raises(FileExistsError, match="precious"):
        save_hf(target, *load_hf(source), source=source)
    assert [entry.name for entry in target.iterdir()] == [occupant]
    assert (target / occupant).read_text() == '{"of": "something else"}'
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "precious"]


def test_a_folder_is_not_written_over_its_own_source(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", CONFIG, tensors(), shards=2)
    with pytest.raises(FileExistsError, match="model is or holds the source"):
        save_hf(folder, *load_hf(folder), source=folder)
    assert read_folder(folder) == tensors()
