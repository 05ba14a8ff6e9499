"""The history of a repository up to one commit, as the bytes of a pack: what came later is not among them."""

import functools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cascade_jax.reward.swe.instance import Instance, InstanceError

_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "1",  # a clone that belongs to somebody else is read all the same
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
_SECONDS = 600
_KEPT = 8  # packs; a group of samples asks for the same one


class Snapshot(NamedTuple):
    """`pack` holds the commit, all that came before it, and nothing else."""

    commit: str
    pack: bytes


def snapshot(instance: Instance) -> Snapshot:
    """The state that a repair starts from. InstanceError: no such repository or commit; OSError: no git."""
    if instance.repository is not None:
        path = instance.repository.resolve()
        return _of_repository(path, instance.base, path.stat().st_mtime_ns)
    return _of_files(json.dumps([*instance.history, {"message": "Import", "files": dict(instance.files)}]))


def _cached(function: Callable[..., Snapshot]) -> Callable[..., Snapshot]:
    """lru_cache whose first call for a key is waited for by the others, while those for most other keys go on."""
    locks, cached = [threading.Lock() for _ in range(64)], functools.lru_cache(_KEPT)(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Snapshot:
        with locks[hash(arguments) % len(locks)]:
            return cached(*arguments)

    return call


@_cached
def _of_repository(path: Path, base: str, changed: int) -> Snapshot:
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        if path.is_file():
            _git(["clone", "--quiet", "--mirror", str(path), folder])
            path = Path(folder)
        return _packed(path, base)


@_cached
def _of_files(commits: str) -> Snapshot:
    """`commits`: JSON of [{message, files}], each with the whole text of the files that it changes."""
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        _git(["init", "--quiet", "--bare", folder])
        _git(["--git-dir", folder, "fast-import", "--quiet"], stdin=_stream(json.loads(commits)))
        return _packed(Path(folder), "refs/heads/main")


def _packed(path: Path, base: str) -> Snapshot:
    def git(*arguments: str, stdin: bytes = b"") -> bytes:
        return _git(["-C", str(path), *arguments], stdin=stdin)

    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise InstanceError(f"the repository {path} is shallow; complete it with git fetch --unshallow")
    commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}").decode().strip()
    return Snapshot(commit, git("pack-objects", "--revs", "--stdout", "--quiet", stdin=f"{commit}\n".encode()))


def _git(arguments: Sequence[str], *, stdin: bytes = b"") -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _GIT
    done = subprocess.run(["git", *arguments], input=stdin, env=environment, capture_output=True, timeout=_SECONDS)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InstanceError(f"git {' '.join(arguments)} fails: {said or 'there is no such commit'}")
    return done.stdout


def _stream(commits: Sequence[Mapping[str, Any]]) -> bytes:
    """What `git fast-import` reads. Equal commits get equal ids: the dates count from 2020."""
    parts: list[bytes] = []
    for number, commit in enumerate(commits):
        when = 1_577_836_800 + 86_400 * number
        message = str(commit.get("message") or "Change").encode()
        parts.append(f"commit refs/heads/main\ncommitter Author <author@example.org> {when} +0000\n".encode())
        parts.append(b"data %d\n%s\n" % (len(message), message))
        for path, text in (commit.get("files") or {}).items():
            data, name = text.encode(), json.dumps(path, ensure_ascii=False).encode()
            parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (name, len(data), data))
    return b"".join([*parts, b"done\n"])
