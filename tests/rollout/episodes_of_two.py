"""One of two processes that share the episodes of a step: python -m tests.rollout.episodes_of_two PORT I FILE."""

import pickle
import sys
from pathlib import Path

from cascade_jax import processes
from cascade_jax.data.chat import Chat
from cascade_jax.data.tasks import train_tokenizer
from tests.rollout.countdown import Guessing, guess_row
from tests.rollout.scripted import Scripted, run, says


class Compared(Guessing):
    async def compare_group(self, row, trajectories, verdicts):
        return [type(v)(v.reward / len(t.replies)) for t, v in zip(trajectories, verdicts, strict=True)]


def episodes(folder: Path) -> tuple[list, Guessing]:
    """Six of them, of different lengths, one of which breaks."""
    chat = Chat(train_tokenizer(folder / "tokenizer.model"))
    scripts = [says("5"), says("1", "5"), says("1", "2", "5"), says("7"), says("1", "1", "1", "1"), says("9", "7")]
    environment = Compared(fails={2: "step"} if processes.count() == 1 else {1: "step"} if processes.is_first() else {})
    rows = [guess_row(5, "a"), guess_row(7, "b")]
    return run(Scripted(chat, *scripts), chat, environment, rows, samples=3), environment


if __name__ == "__main__":
    port, index, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    with processes.joined(f"127.0.0.1:{port}", 2, index):
        groups, environment = episodes(file.parent)
        assert environment.opened == environment.closed == 3, "each process hosts its share and closes it"
        file.write_bytes(pickle.dumps(groups))
