"""System calls that programs in a namespace must not make, as the filter that bubblewrap installs.

Namespaces leave open: new user namespaces (all of the kernel's rights within, memory by mounts), memory that no limit
counts (System V segments, memfd), sockets of families that no network namespace holds (vsock reaches the host of a
virtual machine), and what one process may do to another of the same user.
"""

import platform
import struct

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # audit number, place in the pairs below
_REFUSED = {  # x86_64, aarch64; None: there is none
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)},
    **{"fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "memfd_create": (319, 279)},
    **{"memfd_secret": (447, 447), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425)},
    **{"io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_by_handle_at": (304, 265)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104)},
}
_CLONE, _CLONE3, _SOCKET, _PRLIMIT = (56, 220), (435, 435), (41, 198), (302, 261)
_NEW_NAMESPACES = 0x7E020000  # cgroup, uts, ipc, user, pid, net, mount
_LAST_FAMILY = 16  # netlink; unix and internet sockets come before it
_EPERM, _ENOSYS = 1, 38
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ABOVE, _ANY, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06


def program() -> bytes:
    """The filter as classic BPF, or nothing where the numbers of this processor's system calls are not known."""
    if platform.machine() not in _ARCHITECTURES:
        return b""
    audit, place = _ARCHITECTURES[platform.machine()]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if place == 0:
        lines += [(_ABOVE, 0, 1, 0x3FFFFFFF), (_RETURN, 0, 0, _KILL)]  # the x32 numbers
    for numbers in _REFUSED.values():
        lines += [(_EQUAL, 0, 1, numbers[place]), (_RETURN, 0, 0, _ERROR | _EPERM)]
    # The C library falls back from clone3, whose flags no filter can see, to clone.
    lines += [(_EQUAL, 0, 1, _CLONE3[place]), (_RETURN, 0, 0, _ERROR | _ENOSYS)]
    for number, test, value in (
        (_CLONE[place], _ANY, _NEW_NAMESPACES),
        (_SOCKET[place], _ABOVE, _LAST_FAMILY),
        (_PRLIMIT[place], _ABOVE, 0),  # of another process
    ):
        lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, 16), (test, 0, 1, value)]
        lines += [(_RETURN, 0, 0, _ERROR | _EPERM), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
