"""Runs a Python program in a fork of the resident process, once per test. Standard library alone.

This is sent into a sandbox after `resident`, whose names it sees. The program is compiled once, in a fork as well,
since the source may be made to hurt the compiler. What the standard library offers to it is imported before the forks.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from cascade_jax.reward.sandbox.confinement import confine
    from cascade_jax.reward.sandbox.resident import Resident, write_all

_EXIT = os._exit
_TOGETHER, _SHORT = 4, 0.1  # tests at a time where the last ones took less than these seconds
_NAMES = {  # what judges of programming contests define for every answer: module -> names
    "typing": "Any Callable Deque DefaultDict Dict FrozenSet Iterable Iterator List Optional Sequence Set Tuple Union",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "itertools": "accumulate combinations count cycle groupby pairwise permutations product repeat zip_longest",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort",
    "math": "ceil comb factorial floor gcd inf isqrt lcm log log2 pi sqrt",
    "string": "ascii_lowercase ascii_uppercase",
}
_MODULES = (
    *("abc", "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "heapq", "io", "itertools", "json", "math", "operator", "os", "random", "re", "statistics"),
    *("string", "sys", "threading", "time", "typing"),
)


class Program:
    """The one program that a sandbox judges, and the tests of it."""

    def __init__(self, resident: Resident):
        self.resident, self.code, self.names = resident, b"", {}

    def load(self, source: str, seconds: float) -> None:
        """Compile. The reply is that of a run; its status is 1 where the source is no Python."""

        def start() -> None:
            try:
                code = marshal.dumps(compile(source, "answer.py", "exec", dont_inherit=True))
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
                _EXIT(1)
            write_all(3, code)
            _EXIT(0)

        ended = self.resident.fork([start], [b""], seconds)[0]
        self.code = ended[-1].pop()
        if self.code:
            self.names = offered(names_in(marshal.loads(self.code)))
        self.resident.reply_ended(ended)

    def tests(self, cases: list[tuple[bytes, tuple]], function: str | None, seconds: float) -> None:
        """Run it on each (stdin, arguments), and then its function, or that of its class Solution, if one is named.

        Some at a time while they are short, so that one core forks while another runs.
        """
        gc.collect()
        gc.freeze()  # what a collection does not touch, forks go on to share
        count, most = 1, max(1, min(_TOGETHER, self.resident.limits["processes"] // 8))
        while cases:
            now, cases = cases[:count], cases[count:]
            starts = [self._start(function, arguments) for _, arguments in now]
            all_ended = self.resident.fork(starts, [stdin for stdin, _ in now], seconds, result=function is not None)
            self.resident.reply_ended(*all_ended)
            count = most if max(ended[2] for ended in all_ended) < _SHORT else 1

    def _start(self, function: str | None, arguments: tuple) -> Callable[[], None]:
        def start() -> None:
            _EXIT(execute(marshal.loads(self.code), dict(self.names), function, arguments))

        return start


def names_in(code: CodeType) -> set[str]:
    """Every name that the code or a function in it mentions."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if type(constant) is type(code):
            found |= names_in(constant)
    return found


def offered(names: set[str]) -> dict[str, object]:
    """What judges define for every answer, as far as it is mentioned; the modules that are, are imported."""
    found: dict[str, object] = {}
    for module in _MODULES:
        wanted = names.intersection(_NAMES.get(module, "").split())
        if module in names or wanted:
            loaded = __import__(module)
            found |= {name: getattr(loaded, name) for name in wanted if hasattr(loaded, name)}
            if module in names and module not in found:
                found[module] = loaded
    return found


def execute(code: CodeType, names: dict[str, object], function: str | None, arguments: tuple) -> int:
    """The exit status; the function's result goes to descriptor 3.

    The streams of this process were not used yet, so they serve the program, whose files are their descriptors now.
    """
    module = type(sys)("__main__")
    module.__dict__.update(names, exit=sys.exit, quit=sys.exit)  # the latter come with `site`, which is not here
    sys.modules["__main__"] = module
    sys.argv = ["answer.py"]
    status = 0
    try:
        exec(code, module.__dict__)
        if function is not None:
            write_all(3, written(found_in(module, function)(*arguments)).encode())
    except SystemExit as stop:
        status = 0 if stop.code is None else stop.code & 255 if isinstance(stop.code, int) else 1
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    return ended(status)


def ended(status: int) -> int:
    """What an interpreter does at its end: wait for threads, run what was registered, write what is left."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        return status or 1
    return status


def found_in(module: object, function: str) -> object:
    if hasattr(module, function):
        return getattr(module, function)
    return getattr(module.Solution(), function)


def written(value: object) -> str:
    """JSON in which what JSON lacks has a name: {"tuple": [...]}, {"set": [...]}, {"dict": [[key, value], ...]}."""
    kind = type(value)
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is int:
        return int.__repr__(value)
    if kind is float:
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value)) or repr(value)
    if kind is str:
        from _json import encode_basestring_ascii

        return encode_basestring_ascii(value)
    if kind is list:
        return f"[{', '.join(map(written, value))}]"
    if kind is dict:
        return f'{{"dict": [{", ".join(f"[{written(key)}, {written(item)}]" for key, item in value.items())}]}}'
    for base, name in ((tuple, "tuple"), (set, "set"), (frozenset, "set")):
        if isinstance(value, base):
            return f'{{"{name}": [{", ".join(map(written, value))}]}}'
    for base in (bool, int, float, str, list, dict):
        if isinstance(value, base):
            return written(base(value))
    raise TypeError(f"a result of type {kind.__name__} cannot be compared")


def main(setup: dict[str, object]) -> None:
    """Take the descriptors that the sandbox was started with, become unprivileged, and serve."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in range(2):  # 2 stays: what goes wrong in here is told by it
        os.dup2(nothing, number)
    os.close(nothing)
    confine(setup["uid"], setup["folder"], setup["shared"], setup["limits"])
    resident = Resident(requests, replies, setup)
    program = Program(resident)
    resident.reply(b"up", sys.version.split()[0].encode())
    resident.serve({"load": program.load, "tests": program.tests})
