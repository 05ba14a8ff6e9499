"""Run a cascade, or go on with one: python -m launch.run --config=configs/tiny_cascade.py --workdir=runs/tiny."""

import os
import sys
from contextlib import nullcontext

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import flags, logging

from cascade_jax import processes
from cascade_jax.cascade import run_cascade
from cascade_jax.config import CascadeConfig
from cascade_jax.peers import RESTART
from cascade_jax.stages.context import Unjudged
from launch.command import MISTAKES, cascade_config, define_config, guarded, parse
from launch.preemption import StopOnSignal
from launch.progress import Progress

USAGE = """Run a cascade, or go on with one that was stopped.

    python -m launch.run --config=configs/tiny_cascade.py --workdir=runs/tiny --config.stages.mopd.steps=20

--config=FILE.py     a Python file with get_config(); configs/ holds some to start from
--config.X.Y=VALUE   any setting X.Y of that file, e.g. --config.seed=1 or --config.stages.sft.optimizer.clip_norm=0.5
--workdir=FOLDER     where the run keeps everything; default: runs/NAME of the config
--coordinator=HOST:PORT --processes=N --process=I
                     one of N processes that share the work, and where number 0 of them listens; on TPU VMs, SLURM and
                     Kubernetes they are found without
--help               this text

Settings, their defaults and what they mean: cascade_jax/config/run.py (a whole run) and stage.py (one stage).
The same command goes on with a run that was stopped. Exit codes: 0 done, or stopped by Ctrl-C; 1 samples could not be
judged; 2 a mistake in what was given; 75 start me again (SIGTERM, maintenance, a lost process); launch.restart does."""

CONFIG = define_config()
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run keeps everything; default: runs/NAME of the config.")
COORDINATOR = flags.DEFINE_string("coordinator", "", "HOST:PORT where process 0 listens.")
PROCESSES = flags.DEFINE_integer("processes", 0, "How many processes share the work.")
PROCESS = flags.DEFINE_integer("process", -1, "The number of this process, from 0.")


def main() -> int:
    if {"--help", "-help", "-h"} & set(sys.argv[1:]):
        print(USAGE)
        return 0
    left_over = parse(sys.argv)
    if left_over:
        raise flags.IllegalFlagValueError(f"{left_over[0]!r} is no argument; write settings as --config.NAME=VALUE.")
    logging.set_verbosity(logging.ERROR)
    with processes.joined(COORDINATOR.value, PROCESSES.value, PROCESS.value, mistakes=MISTAKES):
        return train(cascade_config(CONFIG))


def train(config: CascadeConfig) -> int:
    """Run it to its end or to the next stop; the exit code."""
    workdir = WORKDIR.value or f"runs/{config.name}"
    stop = StopOnSignal()
    with Progress() if processes.is_first() else nullcontext() as progress:
        try:
            manifest = run_cascade(config, workdir, on_event=progress, stop_asked=stop)
        except Unjudged as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    stopped, preempted = manifest.status == "stopped", processes.any_of(stop.preempted)
    if not processes.is_first():
        pass  # process 0 speaks for all
    elif stopped:
        command = " ".join(["python -m launch.run", *sys.argv[1:]])
        print(f"Stopped; everything is saved. The same command goes on from here: {command}")
    else:
        print(f"Done. Open {os.path.abspath(os.path.join(workdir, 'report.html'))}")
    return RESTART if stopped and preempted else 0


if __name__ == "__main__":
    guarded(main)
