"""Runs tests of a repository inside of a sandbox, beside the code that they test. Sent there as text.

Standard input: {token, root, library, paths}. On standard output only lines count that begin with the token, which
nobody but their reader knows: {canary: test}, {test, outcome} after each phase of a test, last {tampered: [name]}.

The code under test shares this process and may try to have every test reported as passed. What it meets: lines that
are out cannot be taken back; tests of ours that can only fail, under names like any other, have to be reported as
failed; the functions of pytest, unittest, Python and this file that a verdict hangs on must be those of the start; and
objects cannot be hunted through the garbage collector. Code that knows this file and walks up the stack is not stopped.
"""

import builtins
import importlib
import json
import os
import pkgutil
import secrets
import sys
import types
from collections.abc import Callable

_WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "builtins", "__main__")
_MAY_CHANGE = {"input", "print", "open", "__import__", "_", "breakpoint"}  # that tests like to replace


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    write = writer(os.dup(1), request["token"])
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what tests print is no report
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(request["root"])
    sys.path[:0] = request["library"]
    sys.argv = ["pytest"]
    sys.dont_write_bytecode = True
    run(request["root"], request["paths"], write)
    os._exit(0)  # nothing that was registered for the end is run


def writer(file: int, token: str) -> Callable[[dict], None]:
    """A function that writes one line of the report."""
    out, encode = os.write, json.JSONEncoder().encode

    def write(line: dict) -> None:
        data = f"\n{token}{encode(line)}\n".encode()
        while data:
            data = data[out(file, data) :]

    return write


def no_hunting(event: str, arguments: tuple) -> None:
    """An audit hook."""
    if event in ("gc.get_objects", "gc.get_referrers", "gc.get_referents"):
        raise RuntimeError(f"{event} is not allowed where tests are graded")


def run(root: str, paths: list[str], write: Callable[[dict], None]) -> None:
    """Every test in `paths`, with pytest as the repository configures it but for extra options and plugins."""
    import pytest

    for module in pkgutil.iter_modules(importlib.import_module("_pytest").__path__):
        importlib.import_module(f"_pytest.{module.name}")
    importlib.import_module("unittest.mock")
    look, at_start = watched, watched()
    options = ["-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", root, "--continue-on-collection-errors"]
    sys.addaudithook(no_hunting)
    pytest.main([*options, "-q", "--tb=line", *paths], plugins=[Recorder(root, pytest, write)])
    at_end = look()
    write({"tampered": sorted(name for name in at_start if at_end.get(name) is not at_start[name])[:5]})


def watched() -> dict[str, object]:
    """Functions, classes and what these define, by name, of the modules that a verdict hangs on."""
    found = {}
    for name in [name for name in sys.modules if name.split(".")[0] in _WATCHED]:
        for key, value in list(vars(sys.modules[name]).items()):
            if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
                found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name and value.__module__ != "builtins":
                for inner, method in list(vars(value).items()):
                    if callable(method) or isinstance(method, (property, classmethod, staticmethod)):
                        found[f"{name}.{key}.{inner}"] = method
    return {name: value for name, value in found.items() if name.partition("builtins.")[2] not in _MAY_CHANGE}


class Recorder:
    """A plugin of pytest: puts the canaries in and tells what becomes of every test."""

    def __init__(self, root: str, pytest: types.ModuleType, write: Callable[[dict], None]):
        self._root, self._pytest, self._write = root, pytest, write

    def pytest_configure(self, config: object) -> None:
        """The repository's own modules can be imported only from here on, when all of pytest is loaded."""
        sys.path[:0] = [path for path in (os.path.join(self._root, "src"), self._root) if os.path.isdir(path)]

    def pytest_collection_modifyitems(self, items: list) -> None:
        modules = {}
        for item in items:
            module = item.getparent(self._pytest.Module)
            if module is not None:
                modules[module] = item  # the last one of each module
        for module, last in modules.items():
            name = f"test_{secrets.token_hex(6)}"
            canary = self._pytest.Function.from_parent(module, name=name, callobj=_fails)
            self._write({"canary": canary.nodeid})
            items.insert(items.index(last) + 1, canary)

    def pytest_runtest_logreport(self, report: object) -> None:
        outcome = report.outcome
        # Only the mark in the test file makes a failure an expected one; the code under test could ask for it, too.
        if outcome == "skipped" and hasattr(report, "wasxfail") and "xfail" in report.keywords:
            outcome = "passed"
        self._write({"test": report.nodeid, "outcome": outcome})


def _fails() -> None:
    raise builtins.AssertionError


if __name__ == "__main__":
    main()
