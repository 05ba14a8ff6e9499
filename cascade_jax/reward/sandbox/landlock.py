"""Started as a program: runs another one with Landlock and the system call filter of the `sandlock` package.

Arguments: the folder that may be written, readable folders, "--", the program. It keeps the descriptors 0, 1 and 2.
"""

import os
import sys

_READABLE = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/proc")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def main(arguments: list[str]) -> int:
    """The exit status of the program."""
    from sandlock import Sandbox

    divider = arguments.index("--")
    folder, *readable = arguments[:divider]
    there = [path for path in (*_READABLE, *_DEVICES, *readable) if os.path.exists(path)]
    box = Sandbox(fs_readable=there, fs_writable=[folder, "/dev/null"], cwd=folder)
    return box.run_interactive(arguments[divider + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
