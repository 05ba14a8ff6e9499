"""Runs tests of a repository inside of a sandbox, beside the code that they test. Sent there as text.

Standard input: {token, root, library, paths}. The only line that counts on standard output begins with the token, which
nobody but its reader knows, and holds {outcomes: {test: outcome}, canaries: {test: outcome}, tampered: [name]}.

The code under test shares this process, so it may try to have every test reported as passed. Three things tell: the
token; tests of ours that can only fail, under names like any other; and whether the functions of pytest, unittest and
Python that a verdict hangs on are still those of the start.
"""

import builtins
import importlib
import json
import os
import pkgutil
import secrets
import sys
import types

_WATCHED = ("_pytest", "pytest", "pluggy", "unittest", "builtins")
_MAY_CHANGE = {"input", "print", "open", "__import__", "_", "breakpoint"}  # that tests like to replace


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    report, token = os.dup(1), request.pop("token")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what tests print is no report
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(request["root"])
    sys.path[:0] = request["library"]
    sys.argv = ["pytest"]
    found = run(request["root"], request["paths"])
    line = f"\n{token}{json.dumps(found)}\n".encode()
    while line:
        line = line[os.write(report, line) :]
    os._exit(0)  # nothing that was registered for the end is run


def run(root: str, paths: list[str]) -> dict:
    """Every test in `paths`, with pytest as the repository configures it but for extra options and plugins."""
    import pytest

    for module in pkgutil.iter_modules(importlib.import_module("_pytest").__path__):
        importlib.import_module(f"_pytest.{module.name}")
    importlib.import_module("unittest.mock")
    at_start = watched()
    recorder = Recorder(root, pytest)
    options = ["-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", root, "--continue-on-collection-errors"]
    pytest.main([*options, "-q", "--tb=line", *paths], plugins=[recorder])
    tampered = sorted(name for name, value in watched().items() if at_start.get(name, value) is not value)
    tampered += sorted(set(at_start) - set(watched()))
    return {"outcomes": recorder.outcomes(), "canaries": recorder.canary_outcomes(), "tampered": tampered[:5]}


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
    """A plugin of pytest: puts the canaries in and keeps what became of every test."""

    def __init__(self, root: str, pytest: types.ModuleType):
        self._root, self._pytest = root, pytest
        self._phases: dict[str, list[str]] = {}
        self._canaries: list[str] = []

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
            self._canaries.append(canary.nodeid)
            items.insert(items.index(last) + 1, canary)

    def pytest_runtest_logreport(self, report: object) -> None:
        outcome = report.outcome
        # Only the mark in the test file makes a failure an expected one; the code under test could ask for it, too.
        if outcome == "skipped" and hasattr(report, "wasxfail") and "xfail" in report.keywords:
            outcome = "passed"
        self._phases.setdefault(report.nodeid, []).append(outcome)

    def outcomes(self) -> dict[str, str]:
        return {test: _whole(phases) for test, phases in self._phases.items() if test not in self._canaries}

    def canary_outcomes(self) -> dict[str, str]:
        return {test: _whole(self._phases.get(test, [])) for test in self._canaries}


def _whole(phases: list[str]) -> str:
    """Of setup, call and teardown together; a test that did not come to its end has failed."""
    if "failed" in phases:
        return "failed"
    return "passed" if phases == ["passed"] * 3 else "skipped" if "skipped" in phases else "failed"


def _fails() -> None:
    raise builtins.AssertionError


if __name__ == "__main__":
    main()
