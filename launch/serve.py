"""Serve the rule-based judge of the demo: python -m launch.serve --judge --port 8765. Ctrl-C stops it."""

import argparse
import sys

from cascade_jax.reward import judge_server


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m launch.serve", description=__doc__)
    parser.add_argument("--judge", action="store_true", help="serve the rule-based judge over the OpenAI protocol")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    wrong = parser.add_argument_group("faults of the judge")
    wrong.add_argument("--noise", type=float, default=0.0, help="standard deviation added to its scores")
    wrong.add_argument("--position_bias", type=float, default=0.0, help="added to the score of the first response")
    wrong.add_argument("--malformed", type=float, default=0.0, help="share of replies that cannot be read")
    wrong.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    given = parser.parse_args(arguments)
    if not given.judge:
        parser.error("nothing to serve; give --judge")
    faults = judge_server.Faults(given.noise, given.position_bias, given.malformed, given.delay)
    try:
        server = judge_server.serve(faults=faults, port=given.port)
    except (OSError, OverflowError) as error:
        print(f"Port {given.port} cannot be used: {error}; choose another one, or 0 for any free one.", file=sys.stderr)
        return 2
    print(f"The judge answers at {judge_server.address(server)} (Ctrl-C stops it).", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
