"""Two real processes host half of the episodes each, and both know what one process alone would know."""

import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.rollout.episodes_of_two import episodes

ROOT = Path(__file__).parents[2]


def test_two_processes_share_the_episodes(tmp_path):
    groups, environment = episodes(tmp_path)
    assert environment.opened == environment.closed == 6
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    files = [tmp_path / str(i) / "groups" for i in range(2)]
    for file in files:
        file.parent.mkdir()
    command = [sys.executable, "-m", "tests.rollout.episodes_of_two", str(port)]
    workers = [
        subprocess.Popen([*command, str(i), str(file)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for i, file in enumerate(files)
    ]
    outputs = [worker.communicate(timeout=200)[0].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    for found in (pickle.loads(file.read_bytes()) for file in files):
        for one, other in zip(groups, found, strict=True):
            for a, b in zip(one.samples, other.samples, strict=True):
                assert a.ids.tolist() == b.ids.tolist() and a.mask.tolist() == b.mask.tolist()
                assert (a.stop_reason, a.turns, a.verdict.no_verdict) == (b.stop_reason, b.turns, b.verdict.no_verdict)
                np.testing.assert_equal(a.verdict.reward, b.verdict.reward)
    rewards = [[sample.verdict.reward for sample in group.samples] for group in groups]
    np.testing.assert_equal(rewards, [[1.0, 0.5, np.nan], [1.0, 0.0, 0.5]])
