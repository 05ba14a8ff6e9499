"""Run a cascade, or go on with one: python -m launch.run --config=configs/tiny_cascade.py --workdir=runs/tiny."""

import os
import signal
import sys
from types import FrameType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import flags, logging

from cascade_jax.cascade import run_cascade
from launch.command import cascade_config, define_config, guarded, parse
from launch.progress import Progress

USAGE = """Run a cascade, or go on with one that was stopped.

    python -m launch.run --config=configs/tiny_cascade.py --workdir=runs/tiny --config.stages.mopd.steps=20

--config=FILE.py     a Python file with get_config(); configs/ holds some to start from
--config.X.Y=VALUE   any setting X.Y of that file, e.g. --config.seed=1 or --config.stages.sft.optimizer.clip_norm=0.5
--workdir=FOLDER     where the run keeps everything; default: runs/NAME of the config
--help               this text

Settings, their defaults and what they mean: cascade_jax/config/run.py (a whole run) and stage.py (one stage).
The same command goes on with a run that was stopped."""

CONFIG = define_config()
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run keeps everything; default: runs/NAME of the config.")


class StopOnSignal:
    """True once SIGTERM or Ctrl-C came. A second Ctrl-C ends the process at once; the last checkpoint stays good."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked:
            print("\nStopping after this step (Ctrl-C again: at once) ...", file=sys.stderr, flush=True)
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


def main() -> int:
    if {"--help", "-help", "-h"} & set(sys.argv[1:]):
        print(USAGE)
        return 0
    left_over = parse(sys.argv)
    if left_over:
        raise flags.IllegalFlagValueError(f"{left_over[0]!r} is no argument; write settings as --config.NAME=VALUE.")
    logging.set_verbosity(logging.ERROR)
    config = cascade_config(CONFIG)
    workdir = WORKDIR.value or f"runs/{config.name}"
    with Progress() as progress:
        manifest = run_cascade(config, workdir, on_event=progress, stop_asked=StopOnSignal())
    if manifest.status == "stopped":
        command = " ".join(["python -m launch.run", *sys.argv[1:]])
        print(f"Stopped; everything is saved. The same command goes on from here: {command}")
    else:
        print(f"Done. Open {os.path.abspath(os.path.join(workdir, 'report.html'))}")
    return 0


if __name__ == "__main__":
    guarded(main)
