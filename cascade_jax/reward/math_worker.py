"""A process of its own that compares answers with `math-verify`. Run by path; imports nothing of ours, so no JAX.

Arguments: megabytes of address space, seconds of wall time for one comparison.
JSON lines: {"ready"} out at the start, then {"gold", "answer"} in and {"equal"} or {"error", "cause"} out.
"""

import json
import logging
import os
import resource
import signal
import sys


def compare(gold_text: str, answer_text: str) -> dict:
    """Whether they are equal, or which of them cannot be compared."""
    from math_verify import parse, verify

    gold = parse(rf"\boxed{{{gold_text}}}", parsing_timeout=None)
    if not gold:
        return {"error": "the expected answer does not parse", "cause": "gold"}
    answer = parse(rf"\boxed{{{answer_text}}}", parsing_timeout=None)
    return {"equal": bool(verify(gold, answer, timeout_seconds=None)) and not _tiny_apart(gold, answer)}


def _tiny_apart(gold: list, answer: list) -> bool:
    """True for numbers that math-verify calls equal because both round to the same few digits: 2^-99 and 2^-98."""
    from sympy import Expr, N

    numbers = [next((x for x in found if isinstance(x, Expr) and x.is_number), None) for found in (gold, answer)]
    if None in numbers:
        return False
    a, b = (complex(N(number.doit())) for number in numbers)
    if max(abs(a), abs(b)) > 1e-3:
        return False
    exact_a, exact_b = (number.doit() for number in numbers)
    return bool(abs(N(exact_a - exact_b, 30)) > 1e-6 * max(abs(N(exact_a, 30)), abs(N(exact_b, 30))))


def main() -> None:
    megabytes, seconds = int(sys.argv[1]), float(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    # What the libraries print must not get between the protocol's lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    compare("x+1", "1+x")  # imports and builds all that the first comparison needs
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The kernel ends a worker whose parent is gone even in the middle of a computation that never lets Python run.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            result = compare(request["gold"], request["answer"])
        except MemoryError:
            result = {"error": "out of memory", "cause": "answer"}
        except Exception as error:  # sympy fails in many ways on odd input
            result = {"error": f"{type(error).__name__}: {error}"[:200], "cause": "answer"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
