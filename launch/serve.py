"""Serve the demo's judge, or a verifier or environment as NeMo-Gym's trainers know it; Ctrl-C stops it.

python -m launch.serve --judge --port 8765
python -m launch.serve --environment workplace --port 8765
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.environment.nemo_gym import server as gym
from cascade_jax.reward import VERIFIERS, judge_server

KINDS = {**VERIFIERS, **{name: make for name, make in ENVIRONMENTS.items() if name not in ("nemo_gym", "verifiers")}}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m launch.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", action="store_true", help="serve the rule-based judge over the OpenAI protocol")
    parser.add_argument("--environment", choices=sorted(KINDS), help="the kind of rows to judge, as a resources server")
    parser.add_argument("--settings", type=json.loads, default={}, help="of that kind, as a JSON object")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    wrong = parser.add_argument_group("faults of the judge")
    wrong.add_argument("--noise", type=float, default=0.0, help="standard deviation added to its scores")
    wrong.add_argument("--position_bias", type=float, default=0.0, help="added to the score of the first response")
    wrong.add_argument("--malformed", type=float, default=0.0, help="share of replies that cannot be read")
    wrong.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    given = parser.parse_args(arguments)
    if given.judge == (given.environment is not None):
        parser.error("nothing to serve, or two things; give --judge or --environment")
    if not isinstance(given.settings, dict):
        parser.error(f"--settings={given.settings!r} must be a JSON object")
    try:
        with _judge(given) if given.judge else _environment(given) as server:
            server.serve_forever()
    except (OSError, OverflowError) as error:
        print(f"Port {given.port} cannot be used: {error}; choose another one, or 0 for any free one.", file=sys.stderr)
        return 2
    except TypeError as error:
        print(f"--settings={given.settings} do not fit {given.environment}: {error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.")
    return 0


@contextmanager
def _judge(given: argparse.Namespace) -> Iterator[ThreadingHTTPServer]:
    faults = judge_server.Faults(given.noise, given.position_bias, given.malformed, given.delay)
    server = judge_server.serve(faults=faults, port=given.port)
    print(f"The judge answers at {judge_server.address(server)} (Ctrl-C stops it).", flush=True)
    try:
        yield server
    finally:
        server.server_close()


@contextmanager
def _environment(given: argparse.Namespace) -> Iterator[ThreadingHTTPServer]:
    with gym.serving(KINDS[given.environment](**given.settings), port=given.port) as server:
        host, port = server.server_address[:2]
        print(f"Rows of {given.environment} are judged at http://{host}:{port} (Ctrl-C stops it).", flush=True)
        yield server


if __name__ == "__main__":
    sys.exit(main())
