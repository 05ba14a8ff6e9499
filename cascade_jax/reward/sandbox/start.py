"""Starts the process that a sandbox begins with."""

import os
import subprocess

from cascade_jax.reward.sandbox.limits import SandboxBroken

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# Reads the rest of the program as bytecode, which starts faster than source.
_BOOT = """import marshal
f = open(0, "rb", 0, closefd=False)
def take(n):
    b = b""
    while len(b) < n:
        c = f.read(n - len(b))
        if not c: raise SystemExit
        b += c
    return b
codes, setup = marshal.loads(take(int.from_bytes(take(4), "big")))
for code in codes: exec(marshal.loads(code))
main(setup)
"""


def started(command: list[str], system_calls: bytes) -> subprocess.Popen[bytes]:
    """bubblewrap reads the filter of system calls from a descriptor."""
    filters = []
    if system_calls:
        filters = [os.memfd_create("filter")]
        os.write(filters[0], system_calls)
        os.lseek(filters[0], 0, os.SEEK_SET)
        command = [command[0], "--seccomp", str(filters[0]), *command[1:]]
    try:
        return subprocess.Popen(
            [*command, "-I", "-S", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            bufsize=0,
            start_new_session=True,
            pass_fds=filters,
        )
    except OSError as error:
        raise SandboxBroken(f"{command[0]} cannot be started: {error}") from None
    finally:
        for file in filters:
            os.close(file)


def user_of(pid: int) -> int:
    """A user id that no other live sandbox has: the limit on processes counts those of a user.

    High ones belong to nobody; where a container maps only the low ones, one of the last 20,000 of these is taken.
    """
    with open("/proc/self/uid_map") as file:
        first, _, count = (int(part) for part in file.readline().split())
    if first == 0 and count > 1 << 31:
        return (1 << 30) + pid
    return first + count - 2 - pid % min(20_000, max(1, count - 2))
