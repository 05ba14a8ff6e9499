"""Makes the page of a run again, also while the run is going: python -m launch.report RUN_DIR."""

import argparse
import sys
from collections.abc import Sequence

from cascade_jax.report import write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 where RUN_DIR is not the directory of a run or one of its logs is broken."""
    parser = argparse.ArgumentParser(prog="python -m launch.report", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="what was given to launch.run as --workdir")
    try:
        page = write_report(parser.parse_args(arguments).run_dir)
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"The page: {page.resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
