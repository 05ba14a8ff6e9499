"""Two real processes of four devices each train what one of eight does; killed and started again, the same bits."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from cascade_jax.checkpoint import latest_step, load_model, save_model
from cascade_jax.leaves import by_path
from cascade_jax.model import apply, presets
from tests.runs.conftest import ROOT
from tests.runs.shared_cascade import ORDER

CONFIG = "--config=tests/runs/shared_cascade.py"
ENDS = "This process ends because "
TINY = {"pattern": "*-", "width": 32, "heads": 2, "kv_heads": 2, "head_dim": 16, "mlp_width": 32}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def steps(workdir: Path, stage: str) -> int:
    log = workdir / "stages" / stage / "metrics.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


GLOO = r"(\[Gloo\]|Rank|is|connected|to|peer|ranks|Expected|number|of|\d+|[.:\s])*"


def said(output: Path) -> str:
    """What a process printed, without the lines of Gloo, which its threads write through each other word by word."""
    lines = output.read_text().splitlines()
    return "\n".join(line for line in lines if not re.fullmatch(GLOO, line)).strip()


class Pair:
    """Two processes that were started together; their outputs lie beside the work directory."""

    def __init__(self, launch: Callable[..., subprocess.Popen], workdir: Path, *arguments: str) -> None:
        port, self.workdir = free_port(), workdir
        self.outputs = [workdir.with_name(f"{workdir.name}.{i}.txt") for i in range(2)]
        self.processes = [
            launch(
                "launch.run",
                *arguments,
                f"--workdir={workdir}",
                f"--coordinator=127.0.0.1:{port}",
                "--processes=2",
                f"--process={i}",
                devices=4,
                output=self.outputs[i],
            )
            for i in range(2)
        ]

    def ends(self, timeout: float = 900) -> list[int]:
        """Their exit codes."""
        deadline = time.monotonic() + timeout
        try:
            return [p.wait(timeout=max(0.1, deadline - time.monotonic())) for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def until(self, stage: str, count: int) -> None:
        deadline = time.monotonic() + 900
        while steps(self.workdir, stage) < count:
            ended = [p.poll() for p in self.processes]
            assert ended == [None, None], [said(output) for output in self.outputs]
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture(scope="module")
def arguments(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The shared cascade on top of a network so small that nearly all of the time is compilation."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = replace(presets.get("tiny"), **TINY)
    save_model(folder, config, apply.init(config, jax.random.key(0)), tokenizer=start / "tokenizer.model")
    return (CONFIG, "--config.model=", f"--config.checkpoint={folder}")


@pytest.fixture(scope="module")
def both(launch, arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of two processes with four devices each, and of one with all eight."""
    folder = tmp_path_factory.mktemp("both")
    together, alone, output = folder / "together", folder / "alone", folder / "alone.txt"
    one = launch("launch.run", *arguments, f"--workdir={alone}", devices=8, output=output)
    try:
        pair = Pair(launch, together, *arguments)
        assert pair.ends() == [0, 0], [said(output) for output in pair.outputs]
        assert one.wait(timeout=900) == 0, output.read_text()
    finally:
        one.kill()
    assert "Done. Open" in said(pair.outputs[0]) and said(pair.outputs[1]) == ""  # process 0 speaks for both
    return together, alone


@pytest.fixture(scope="module")
def together(both: tuple[Path, Path]) -> Path:
    return both[0]


@pytest.fixture(scope="module")
def alone(both: tuple[Path, Path]) -> Path:
    return both[1]


@pytest.fixture(scope="module")
def broken(launch, arguments: tuple[str, ...], together: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed twice, once each process, then asked to stop, and each time started again."""
    workdir = tmp_path_factory.mktemp("broken") / "run"
    for dead, stage in ((1, "sft"), (0, "if_rl")):
        pair = Pair(launch, workdir, *arguments)
        pair.until(stage, 2)
        pair.processes[dead].kill()
        begun, codes = time.monotonic(), pair.ends(timeout=60)
        assert time.monotonic() - begun < 20
        assert codes[dead] == -signal.SIGKILL and codes[1 - dead] == 75, said(pair.outputs[1 - dead])
        assert ENDS in said(pair.outputs[1 - dead])
        assert latest_step(workdir / "stages" / stage / "checkpoints") >= steps(workdir, stage) - 1
    pair = Pair(launch, workdir, *arguments)
    pair.until("mopd", 1)
    pair.processes[1].send_signal(signal.SIGTERM)  # both stop after the same step
    assert pair.ends() == [75, 75], [said(output) for output in pair.outputs]
    assert "The same command goes on from here" in said(pair.outputs[0])
    assert json.loads((workdir / "manifest.json").read_text())["status"] == "stopped"
    assert Pair(launch, workdir, *arguments).ends() == [0, 0]
    return workdir


def weights(run: Path, stage: str) -> dict[str, np.ndarray]:
    """Of a finished stage, loaded by one process on one device."""
    return jax.tree.map(np.asarray, by_path(load_model(run / "stages" / stage / "checkpoints" / "final")[1]))


def metrics(run: Path, stage: str) -> list[tuple[int, dict[str, float]]]:
    lines = (run / "stages" / stage / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["metrics"]) for record in map(json.loads, lines)]


@pytest.mark.parametrize("stage", ORDER)
def test_two_processes_train_what_one_does(together: Path, alone: Path, stage: str):
    """To 1e-6: Gloo adds the parts of more than two devices in another order than one process does."""
    one, other, before = weights(together, stage), weights(alone, stage), weights(alone, ORDER[0])
    assert stage == ORDER[0] or any((one[path] != before[path]).any() for path in one)  # it has learnt something
    for path in one:
        np.testing.assert_allclose(one[path], other[path], rtol=0, atol=1e-6, err_msg=path)
    for (step, found), (_, wanted) in zip(metrics(together, stage), metrics(alone, stage), strict=True):
        for name in wanted:
            assert found[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-5), (step, name)
    for name in ("samples.jsonl", "eval.json"):
        files = [run / "stages" / stage / name for run in (together, alone)]
        assert files[0].read_bytes() == files[1].read_bytes(), name


@pytest.mark.parametrize("stage", ORDER)
def test_what_was_broken_goes_on_with_the_same_bits(together: Path, broken: Path, stage: str):
    assert metrics(together, stage) == metrics(broken, stage)
    one, other = weights(together, stage), weights(broken, stage)
    assert all(np.array_equal(one[path], other[path]) for path in one)
    if stage == "mopd":
        assert len(list((broken / "stages" / stage / "hf").glob("*.safetensors"))) == 1
    for name in ("samples.jsonl", "eval.json"):
        files = [run / "stages" / stage / name for run in (together, broken)]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def test_a_mistake_ends_both(launch, arguments: tuple[str, ...], tmp_path: Path):
    pair = Pair(launch, tmp_path / "run", *arguments, "--config.mesh.data=3")
    assert pair.ends(timeout=120) == [2, 2], [said(output) for output in pair.outputs]
    assert "needs 12 devices and there are 8" in said(pair.outputs[0])
    process = launch("launch.run", *arguments, f"--workdir={tmp_path / 'run'}", "--processes=2")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and "give all three" in output, output


EXCHANGE = """
from cascade_jax import processes
with processes.joined("", 0, -1):
    here = processes.index()
    assert processes.gather({"from": here}) == [{"from": 0}, {"from": 1}]
    assert processes.gather("x" * (1 + 999 * here)) == ["x", "x" * 1000]
    assert processes.any_of(here == 1) and not processes.any_of(False)
    assert processes.shared(lambda part: [(here, item) for item in part], [5, 6, 7]) == [(0, 5), (1, 6), (0, 7)]
    assert processes.of_first(lambda: here) == 0
    try:
        processes.of_first(lambda: 1 / here if here else {}["of process 0"])
    except KeyError as error:
        print(error)
"""


def test_they_find_each_other_in_slurm_and_exchange_what_they_have():
    job = str(os.getpid())  # JAX makes the port of it, one of 4,096
    slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", EXCHANGE],
            cwd=ROOT,
            env={**os.environ, **slurm, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert child.returncode == 0 and "'of process 0'" in output, output


TROUBLE = """
import os, signal, sys, time
import numpy as np
from cascade_jax import processes
trouble, port, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
first_time = not os.path.exists(f"been.{index}")
open(f"been.{index}", "w").close()
with processes.joined(f"127.0.0.1:{port}", 2, index):
    processes.barrier("begun")
    if first_time and trouble == f"kill {index}":
        os.kill(os.getpid(), signal.SIGKILL)
    if first_time and trouble == f"raise {index}":
        raise RuntimeError("the disk is full")
    if first_time:
        time.sleep(60)  # host work: no collective notices that the peer is gone
    print("sum", sum(processes.gather(index)), flush=True)
"""


@pytest.mark.parametrize(("trouble", "codes"), [("kill 1", [0, 0]), ("kill 0", [0, 0]), ("raise 1", [75, 1])])
def test_a_restart_loop_for_each_brings_both_back(tmp_path: Path, trouble: str, codes: list[int]):
    """On the same port as before. An error is no reason to start again, but the peer's loop does not know of it yet."""
    port, loop = str(free_port()), ["-m", "launch.restart", "--"] if codes == [0, 0] else ["-c", TROUBLE]
    child = [sys.executable, "-c", TROUBLE] if codes == [0, 0] else []
    loops = [
        subprocess.Popen(
            [sys.executable, *loop, *child, trouble, port, str(i)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    begun = time.monotonic()
    outputs = [loop.communicate(timeout=150)[0] for loop in loops]
    assert [loop.returncode for loop in loops] == codes, outputs
    assert time.monotonic() - begun < 55, "the survivor waited for its own work to end"
    if codes == [0, 0]:
        assert all("sum 1" in output for output in outputs), outputs
