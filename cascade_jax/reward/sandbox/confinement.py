"""The limits that the process in a sandbox takes on, watches, and enforces. Standard library alone."""

from __future__ import annotations

import os
import resource

_MOST_FILES = 50_000
_KILL = 9
_DUMPABLE, _SUBREAPER = 4, 36  # of prctl; a change of user, below, ends the former by itself


def confine(user: int | None, folder: str, shared: bool, limits: dict[str, int]) -> None:
    """Become the unprivileged user of this sandbox, then take the limits, which hold for all that it starts."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    else:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_DUMPABLE, 0, 0, 0, 0)  # programs are of the same user and must not write to this one's memory
        if shared:
            prctl(_SUBREAPER, 1, 0, 0, 0)  # what a program leaves running stays a descendant
    os.umask(0o022)
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    limit("CORE", 0)
    limit("AS", limits["memory"])
    limit("FSIZE", limits["file_size"])
    limit("NOFILE", limits["open_files"])
    if user is not None or not shared:
        limit("NPROC", limits["processes"])  # counts what a user runs, so that user must not run anything else


def limit(name: str, soft: int, hard: int | None = None) -> None:
    """Never above what this process has already."""
    number = getattr(resource, f"RLIMIT_{name}")
    most = resource.getrlimit(number)[1]
    values = [soft, soft if hard is None else hard]
    resource.setrlimit(number, tuple(value if most < 0 else min(value, most) for value in values))


def exceeded(folder: str, shared: bool, limits: dict[str, int], runs: int) -> bytes:
    """What all other processes of the sandbox together have too much of for that many runs: memory, disk, or no."""
    pids = others(shared)
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        pages += int(fields[1]) - int(fields[2])
    if pages * resource.getpagesize() > limits["memory"] * runs:
        return b"memory"
    if shared:
        files, size = used(folder)
        if size > limits["disk"] or (len(pids) > limits["processes"]):
            return b"disk" if size > limits["disk"] else b"processes"
    else:
        space = os.statvfs(folder)
        files = space.f_files - space.f_ffree
    return b"disk" if files > _MOST_FILES else b"no"


def used(folder: str) -> tuple[int, int]:
    """How many files a folder of the machine has, and how many bytes."""
    files = size = 0
    for place, folders, names in os.walk(folder):
        files += len(folders) + len(names)
        for name in names:
            try:
                size += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return files, size


def others(shared: bool) -> list[int]:
    """Every other process of the sandbox that runs; where the processes of the machine are seen, all descendants."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    if not shared:
        return pids
    parents = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            parents[pid] = int(parent)
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sorted(ours - {os.getpid()})


def end_others(shared: bool, user: int | None) -> None:
    """Kill them. In a namespace, or with a user of its own, one call reaches all; else they are looked for."""
    if not shared or user is not None:
        try:
            os.kill(-1, _KILL)
        except (ProcessLookupError, PermissionError):
            return  # there is none
        return
    while found := others(shared):
        for pid in found:
            try:
                os.kill(pid, _KILL)
            except OSError:
                continue
