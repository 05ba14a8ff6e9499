"""A repair is graded in a sandbox of its own: the code at the start, the changed files, then the tests, then pytest."""

import functools
import importlib.util
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_jax.reward.sandbox import Finished, Limits, Sandbox, SandboxBroken, open_sandbox
from cascade_jax.reward.sandbox.backend import chosen
from cascade_jax.reward.swe.history import Snapshot, snapshot
from cascade_jax.reward.swe.instance import Instance, InstanceError

MIB = 1 << 20
ROOT = "repo"  # in the sandbox's folder
GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@example.org",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@example.org",
    "GIT_PAGER": "cat",
}
_CHECKOUT = """set -e
git init -q -b main "$1" && cd "$1"
git index-pack --stdin -o .git/objects/pack/base.idx .git/objects/pack/base.pack < "$2" > /dev/null
rm "$2"
git update-ref refs/heads/main "$3"
git reset -q --hard
"""
_HAS = 'cd repo; for n in "$@"; do for at in . src; do ls -d $at/$n/__init__.py $at/$n.py; done; done 2> /dev/null'
_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_SETUP_SECONDS = 300.0


@dataclass(frozen=True)
class Room:
    """What a repository's sandbox has. `packages`: folders with what the repositories import, seen read-only."""

    memory: int = 2048 * MIB
    disk: int = 1024 * MIB
    processes: int = 128
    packages: tuple[str, ...] = ()

    def open(self, *names: str) -> Sandbox:
        """`names`: folders at the root that lead to /tmp. SandboxBroken: it does not come up, or no pytest is here."""
        sizes = {"disk": self.disk, "file_size": self.disk, "output": 32 * MIB}
        limits = Limits(memory=self.memory, processes=self.processes, **sizes)
        return open_sandbox(limits, readable=[*_pytest_folders(), *self.packages], names=names)

    @property
    def library(self) -> tuple[str, ...]:
        """Folders on the sandbox's Python path."""
        return tuple(dict.fromkeys([*(str(Path(folder).parent) for folder in _pytest_folders()), *self.packages]))


@dataclass(frozen=True)
class Grade:
    """`passed` of `asked` tests. reason: why they did not all pass. timed_out, out_of_memory: pytest was ended."""

    passed: int
    asked: int
    reason: str = ""
    timed_out: bool = False
    out_of_memory: bool = False
    failed: tuple[str, ...] = field(default=())

    @property
    def resolved(self) -> bool:
        return not self.reason and self.passed == self.asked


def grade(instance: Instance, changes: Mapping[str, bytes | None], room: Room, *, seconds: float) -> Grade:
    """`changes`: whole new contents by path, None where a file is gone; those of tests and their setup are left out.

    InstanceError: the row is at fault. SandboxBroken: the sandbox is.
    """
    start = snapshot(instance)
    with room.open() as box:
        checkout(box, start)
        if box.run(["bash", "-c", _HAS, "has", *_PYTEST], seconds=_SETUP_SECONDS).stdout:
            raise InstanceError("the repository is a part of pytest, which cannot test itself from another place")
        try:
            for path, data in changes.items():
                if instance.counts(path):
                    _change(box, path, data)
        except OSError as error:
            return Grade(0, len(instance.tests), f"a changed file cannot be written: {error}")
        _bring_tests(box, instance)
        return _run(box, instance, room, seconds)


def checkout(box: Sandbox, start: Snapshot, root: str = ROOT) -> None:
    """The commit and its history, as a repository on the branch main."""
    box.write("base.pack", start.pack)
    pack = f"{box.folder}/base.pack"
    done = box.run(["bash", "-c", _CHECKOUT, "checkout", root, pack, start.commit], env=GIT, seconds=_SETUP_SECONDS)
    if done.returncode:
        raise SandboxBroken(f"the repository cannot be unpacked: {said(done)}")


def said(done: Finished) -> str:
    """The last line of a program's complaints."""
    return (done.killed or done.stderr.decode(errors="replace").strip().rpartition("\n")[2])[:300]


def _change(box: Sandbox, path: str, data: bytes | None) -> None:
    if data is not None:
        box.write(f"{ROOT}/{path}", data)
    else:
        box.run(["rm", "-f", "--", f"{ROOT}/{path}"])


def _bring_tests(box: Sandbox, instance: Instance) -> None:
    if instance.test_patch:
        apply = ["git", "-C", ROOT, "apply", "--whitespace=nowarn", "-"]
        done = box.run(apply, stdin=instance.test_patch.encode(), env=GIT, seconds=_SETUP_SECONDS)
        if done.returncode:
            raise InstanceError(f"the test patch does not apply: {said(done)}")
    for path, text in instance.test_files.items():
        box.write(f"{ROOT}/{path}", text.encode())


def _run(box: Sandbox, instance: Instance, room: Room, seconds: float) -> Grade:
    token, asked = secrets.token_hex(16), len(instance.tests)
    before = _stamps(box, instance)
    box.write("run_tests.py", Path(__file__).with_name("run_tests.py").read_bytes())
    request = {"token": token, "root": f"{box.folder}/{ROOT}", "library": room.library, "paths": _files(instance)}
    done = box.run([chosen().python, "-I", "-S", "run_tests.py"], stdin=json.dumps(request).encode(), seconds=seconds)
    after = _stamps(box, instance)
    if any(after.get(path) != stamp for path, stamp in before.items()):
        return Grade(0, asked, "the code changes its tests", failed=instance.tests)
    if done.killed:
        return Grade(
            0, asked, f"the tests used up their {done.killed}", done.timed_out, done.out_of_memory, instance.tests
        )
    lines = [line[len(token) :] for line in done.stdout.split(b"\n") if line.startswith(token.encode())]
    try:
        outcomes, forgery = _read([json.loads(line) for line in lines])
    except (ValueError, LookupError, TypeError, AttributeError):
        return Grade(0, asked, f"the tests came to no end: {said(done)}", failed=instance.tests)
    if forgery:
        return Grade(0, asked, f"the code changes what tests it: {forgery}", failed=instance.tests)
    failed = tuple(test for test in instance.tests if not _passed(test, outcomes))
    return Grade(asked - len(failed), asked, f"{len(failed)} tests do not pass" if failed else "", failed=failed)


def _stamps(box: Sandbox, instance: Instance) -> dict[str, str]:
    """Inode and time of the last change, which no program can set, of each Python file that is not to change."""
    find = ["find", ROOT, "-name", ".git", "-prune", "-o", "-name", "*.py", "-printf", "%P\\t%i %C@\\0"]
    lines = box.run(find, seconds=_SETUP_SECONDS).stdout.decode(errors="surrogateescape").split("\0")
    stamps = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {path: stamp for path, stamp in stamps.items() if not instance.counts(path)}


def _read(lines: list[dict[str, Any]]) -> tuple[dict[str, bool], str]:
    """Whether each test passed in all of its phases, and what shows that the report is forged, if anything does.

    ValueError, LookupError: the report is not whole.
    """
    *lines, last = lines
    phases: dict[str, list[str]] = {}
    for line in lines:
        if "test" in line:
            phases.setdefault(line["test"], []).append(line["outcome"])
    canaries = [line["canary"] for line in lines if "canary" in line]
    forged = [*last["tampered"], *(test for test in canaries if "failed" not in phases.get(test, ()))]
    return {test: found == ["passed"] * 3 for test, found in phases.items()}, forged[0] if forged else ""


def _files(instance: Instance) -> list[str]:
    """The files that hold the tests."""
    named = [test.partition("::")[0] for test in instance.tests if "::" in test]
    return sorted(set(named)) or sorted(path for path in instance.test_paths if path.endswith(".py"))


def _passed(test: str, outcomes: Mapping[str, bool]) -> bool:
    """By its id; by its first word, as logs of SWE-bench cut ids; or by names with dots, as R2E-Gym writes them."""
    if test in outcomes:
        return outcomes[test]
    found = [how for name, how in outcomes.items() if test in (name.split(" ")[0], _dotted(name))]
    return bool(found) and all(found)


def _dotted(name: str) -> str:
    return ".".join(name.split("::")[1:])


@functools.cache
def _pytest_folders() -> tuple[str, ...]:
    """Where pytest and what it needs are installed here. SandboxBroken: they are not."""
    found = [importlib.util.find_spec(name) for name in _PYTEST]
    if None in found:
        lacks = ", ".join(name for name, spec in zip(_PYTEST, found, strict=True) if spec is None)
        raise SandboxBroken(f"tests of repositories need pytest, and {lacks} cannot be imported; pip install pytest")
    origins = [Path(spec.origin).resolve() for spec in found]
    return tuple(str(origin.parent if origin.name == "__init__.py" else origin) for origin in origins)
