"""Scores a checkpoint on benchmarks, with intervals.

python -m launch.evaluate --benchmark=ifbench,humaneval --checkpoint=PATH --out=evaluations/NAME [--rows=16 --samples=1]
python -m launch.evaluate --regrade=evaluations/NAME          (judges the samples again; needs no checkpoint)
python -m launch.evaluate --compare=evaluations/A,evaluations/B
python -m launch.evaluate --list                              (benchmarks, their settings, where their data come from)

Settings are those of the paper unless given. The same command goes on with an evaluation that was stopped. Exit codes:
0 done, or stopped by Ctrl-C; 1 more than 5 % of a benchmark's samples have no verdict; 2 a mistake in what was given;
75 start me again (SIGTERM).
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from rich.console import Console
from rich.progress import Progress

from cascade_jax.config import JudgeConfig
from cascade_jax.peers import MISTAKE, RESTART
from cascade_jax.reward import Verifier
from cascade_jax.reward.judge import Judge
from cascade_jax.rollout.environment import Environment
from cascade_jax.types import Row
from evals import benchmarks, policy, report, runner, tables
from evals.benchmarks import BENCHMARKS, ELSEWHERE, Benchmark, Data
from evals.folder import Record, Settings
from evals.grading import regrade
from evals.policy import Policy
from launch.convert import find_gguf
from launch.examine import free_memory

JUDGE_SECONDS = 600.0  # for one reply; judges think


class Work(NamedTuple):
    """One benchmark, ready to be run but for the policy."""

    name: str
    benchmark: Benchmark
    judge: Verifier | Environment
    rows: Sequence[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text for the exit codes."""
    given = _parser().parse_args(arguments)
    try:
        return _run(given)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    except ModuleNotFoundError as error:
        missing = f"the package {error.name} is not installed; run pip install -e '.[evals]'."
        print(f"error: {missing if error.name else error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt as stop:
        command = " ".join(["python -m launch.evaluate", *(sys.argv[1:] if arguments is None else arguments)])
        print(f"\nStopped; what was drawn is saved. The same command goes on from here: {command}", file=sys.stderr)
        return RESTART if isinstance(stop, Preempted) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m launch.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--benchmark", help="names from --list, or files of rows (.jsonl, .parquet), with commas between them")
    add(
        "--checkpoint",
        help="a Hugging Face folder, a checkpoint of a run or its stage, a .gguf file or a package with one",
    )
    add("--out", type=Path, help="where samples and scores are kept")
    add("--rows", type=int, default=0, help="the first so many rows of each benchmark (default: all)")
    add("--samples", type=int, help="of each row")
    add("--temperature", type=float)
    add("--top_p", type=float)
    add("--max_tokens", type=int, help="of one answer, or of one turn")
    add("--thinking", choices=("yes", "no"), help="whether the model thinks before it answers")
    add("--longest_prompt", type=int, default=2**20, help="tokens; longer prompts get no verdict (default 1,048,576)")
    add("--batch", type=int, default=32, help="samples decoded at a time (default 32)")
    add("--seed", type=int, default=0)
    add("--data", type=Path, default=Path("data/benchmarks"), help="a folder of data files (default data/benchmarks)")
    add("--judge", default="", help="http://HOST:PORT/v1 of an OpenAI-compatible judge, where a benchmark needs one")
    add("--judge_model", default="judge", help="its name there")
    add("--judge_key", default="", metavar="VARIABLE", help="the environment variable that holds its key")
    add("--regrade", type=Path, metavar="DIR", help="judge the samples of an evaluation again")
    add("--compare", metavar="DIR_A,DIR_B", help="the second evaluation against the first, row by row")
    add("--list", action="store_true", help="print the benchmarks")
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.list:
        print(tables.settings(BENCHMARKS, ELSEWHERE), end="")
        return 0
    if given.compare is not None:
        first, _, second = given.compare.partition(",")
        if not second:
            raise ValueError(f"--compare={given.compare} must be two folders, as --compare=DIR_A,DIR_B.")
        print(tables.comparisons(report.compare(Path(first), Path(second))), end="")
        return 0
    with _judge(given) as judge:
        if given.regrade is not None:
            for folder in report.evaluated(given.regrade):
                with _closing(report.benchmark_of(folder).judge(judge)) as verifier:
                    regrade(folder, verifier)
            return _told(given.regrade)
        return _evaluate(given, judge)


def _evaluate(given: argparse.Namespace, judge: Judge | None) -> int:
    for flag in ("benchmark", "checkpoint", "out"):
        if getattr(given, flag) is None:
            raise ValueError(f"--{flag} is missing; --help shows how it is given, --list which benchmarks there are.")
    for flag in ("rows", "samples", "batch", "longest_prompt"):
        value, least = getattr(given, flag), 0 if flag == "rows" else 1
        if value is not None and value < least:
            raise ValueError(f"--{flag}={value} must be at least {least}.")
    load = functools.cache(lambda: _policy(given.checkpoint))  # some rows need its tokenizer, most do not
    data = Data(given.data, encode=lambda text: load().chat.tokenizer.encode(text))
    with contextlib.ExitStack() as stack:
        work = []
        for name, benchmark in map(benchmarks.find, given.benchmark.split(",")):
            verifier = stack.enter_context(_closing(benchmark.judge(judge)))
            rows = benchmark.load(data)
            work.append(Work(name, benchmark, verifier, rows[: given.rows] if given.rows else rows))
        loaded = load()
        engine, weights = loaded.engine(batch=given.batch), loaded.fingerprint()
        for one in work:
            settings = _settings(given, one, weights)
            at_once = min(given.batch, len(one.rows) * settings.samples)
            loaded.check_room(at_once, settings.sampling.max_tokens, free_memory())
            with _shown(one, settings) as on_records:
                folder = given.out / one.name
                runner.run(engine, loaded.chat, one.judge, one.rows, settings, folder, on_records=on_records)
    return _told(given.out)


def _policy(checkpoint: str) -> Policy:
    path = Path(checkpoint)
    return policy.load(path if path.is_dir() else find_gguf(checkpoint))


def _settings(given: argparse.Namespace, work: Work, weights: str) -> Settings:
    benchmark = work.benchmark
    changed = {name: getattr(given, name) for name in ("temperature", "top_p", "max_tokens")}
    changed = {name: value for name, value in changed.items() if value is not None}
    return Settings(
        benchmark=work.name,
        checkpoint=given.checkpoint,
        weights=weights,
        samples=given.samples or benchmark.samples,
        sampling=dataclasses.replace(benchmark.sampling, **changed),
        thinking=benchmark.thinking if given.thinking is None else given.thinking == "yes",
        seed=given.seed,
        rows=given.rows,
        batch=given.batch,
        longest_prompt=given.longest_prompt,
    )


def _told(out: Path) -> int:
    """Write and print the scores; 1 where too many samples have no verdict."""
    summaries, text = report.write(out)
    print(text)
    print(f"All samples: {out}/*/samples.jsonl; the figures: {out / 'scores.json'}")
    return 1 if report.without_verdict(summaries) else 0


@contextlib.contextmanager
def _judge(given: argparse.Namespace) -> Iterator[Judge | None]:
    if not given.judge:
        yield None
        return
    config = JudgeConfig(
        url=given.judge, model=given.judge_model, key_variable=given.judge_key, wire="chat", timeout=JUDGE_SECONDS
    )
    with Judge(config) as judge:
        yield judge


@contextlib.contextmanager
def _closing(judge: Any) -> Iterator[Any]:
    """Verifiers that keep processes have a `close`."""
    try:
        yield judge
    finally:
        getattr(judge, "close", lambda: None)()


@contextlib.contextmanager
def _shown(work: Work, settings: Settings) -> Iterator[Any]:
    """A bar on a terminal, a line every ten seconds elsewhere; gives what is to be called with each batch."""
    console = Console(stderr=True)
    total, drawn, tokens, began, printed = len(work.rows) * settings.samples, 0, 0, time.monotonic(), time.monotonic()
    with Progress(console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(work.name, total=total)

        def on_records(records: Sequence[Record]) -> None:
            nonlocal drawn, tokens, printed
            drawn, tokens = drawn + len(records), tokens + sum(record["tokens"] for record in records)
            bars.update(task, completed=drawn)
            if not console.is_terminal and time.monotonic() - printed > 10:
                console.print(f"  {work.name} {drawn}/{total}, {time.monotonic() - began:.0f} s", highlight=False)
                printed = time.monotonic()

        yield on_records
    console.print(f"{work.name}: {drawn} samples, {tokens} tokens, {time.monotonic() - began:.0f} s", highlight=False)


class Preempted(KeyboardInterrupt):
    """SIGTERM: somebody else wants the machine."""


def _preempted(number: int, frame: Any) -> None:
    raise Preempted


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _preempted)
    sys.exit(main())
