"""Started as a program: runs another one with Landlock and the system call filter of the `sandlock` package.

Arguments: bytes of memory for all together, the folder that may be written, readable folders, "--", the program. It
keeps the descriptors 0, 1 and 2.
"""

import os
import sys

_READABLE = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/proc")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def main(arguments: list[str]) -> int:
    """The exit status of the program."""
    from sandlock import Sandbox

    divider = arguments.index("--")
    memory, folder, *readable = arguments[:divider]
    there = [path for path in (*_READABLE, *_DEVICES, *readable) if os.path.exists(path)]
    mib = f"{int(memory) >> 20}M"
    box = Sandbox(fs_readable=there, fs_writable=[folder, "/dev/null"], cwd=folder, max_memory=mib)
    return box.run_interactive(arguments[divider + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
