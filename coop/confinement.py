"""A process that changes files only inside of an overlay: what goes around that is refused.

By Linux's Landlock, where the kernel has it (since 5.13), whoever asks: Python, a library in
another language, a program that was started. And by Python's audit events everywhere: there,
without Landlock, no program is started, since nothing could be said of it. Neither can be undone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable
from typing import Any

from coop.layers import is_under, real
from coop.overlay import WRITES, Overlay

__all__ = ["confine"]

# Events of Python, with the arguments that are paths; what they change is the path's last part.
_EVENTS = {
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
}
_PROGRAMS = frozenset(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"))

# System calls, the same on all architectures; and what of linux/landlock.h is used here.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_CHANGES = sum(1 << bit for bit in range(4, 13))  # remove and make: files, folders, links, ...
_REFER = 1 << 13  # rename and link between folders; since version 2
_TRUNCATE = 1 << 14  # since version 3
_NO_NEW_PRIVILEGES = 38


def confine(overlay: Overlay) -> None:
    """For good: call it in a process of its own."""
    is_confined = restrict_writing([overlay.folder])

    def refuse(path: Any, why: str) -> None:
        raise PermissionError(errno.EACCES, f"coop: {why}", path)

    def check(path: Any, follow: bool) -> None:
        if path is None or isinstance(path, int):
            return
        with overlay.passing():
            key = real(os.path.join(os.getcwd(), os.fsdecode(path)), follow)
            if is_under(key, overlay.folder) or overlay.is_own(key):
                return
        refuse(path, "nothing is written while a program is recorded")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if args[2] & WRITES and args[0] is not overlay.name_for_opener():
                check(args[0], True)
        elif event == "os.truncate":
            check(args[0], True)
        elif event in _EVENTS:
            for argument in _EVENTS[event]:
                check(args[argument], False)
        elif event in _PROGRAMS and not is_confined:
            refuse(str(args[0]), "without Landlock no program is started while one is recorded")

    sys.addaudithook(hook)


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_writing(folders: Iterable[str]) -> bool:
    """Only in these folders files are written, made or removed. False: this kernel cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        return False
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < 1:
        return False
    handled = _WRITE_FILE | _CHANGES
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    size = ctypes.sizeof(_Ruleset)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(_Ruleset(handled)), size, 0)
    if ruleset < 0:
        return False
    try:
        # Devices are no files of anyone; semaphores and memory that is shared lie in /dev/shm.
        allowed = {"/dev": handled & (_WRITE_FILE | _TRUNCATE), "/dev/shm": handled}
        allowed["/proc"] = allowed["/dev"]
        for folder in allowed | dict.fromkeys(folders, handled):
            access = allowed.get(folder, handled)
            if os.path.isdir(folder):
                _allow(libc, ruleset, folder, access)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, folder: str, access: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, descriptor)
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule", folder)
    finally:
        os.close(descriptor)
