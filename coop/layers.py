"""Two layers of files: the file system, and above it a folder that has what a program changed.

The layer below is only read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Layers", "is_under", "real"]


class Layers:
    """Where the files of a program are.

    The key of a file is its real absolute path. It lies at `root + key` once it was written; what
    `hidden` has, with everything below, was removed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = os.path.realpath(folder)
        self.root = os.path.join(self.folder, "files")
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.root)
        os.mkdir(self.temporary)
        self.hidden: set[str] = set()
        self.borrowed: set[str] = set()  # links in the layer above: files that were only renamed

    def key(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The real path, links in the layer above followed as well."""
        name = os.fsdecode(path)
        base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        name = self.bare(os.path.join(base, name))
        for _ in range(40):
            name = real(name, follow)
            if name in self.borrowed:
                return name
            above = real(self.root + name, follow)
            if above == self.root + name:
                return name
            name = self.bare(above)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def bare(self, path: str) -> str:
        return path[len(self.root) :] or "/" if is_under(path, self.root) else path

    def found(self, key: str) -> str:
        """Where what the program sees there lies; nothing is there if it was removed."""
        above = self.root + key
        return above if os.path.lexists(above) or self.is_hidden(key) else key

    def is_own(self, key: str) -> bool:
        """No file of anyone: our folder, a device, a pipe."""
        if is_under(key, self.folder) or is_under(key, "/proc"):
            return True
        with contextlib.suppress(OSError):
            mode = os.lstat(key).st_mode
            return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        return False

    def is_hidden(self, key: str) -> bool:
        if not self.hidden:
            return False
        return key in self.hidden or any(str(parent) in self.hidden for parent in Path(key).parents)

    def names(self, key: str) -> dict[str, str]:
        """What a folder has, by name: where it lies."""
        above = self.root + key
        names: dict[str, str] = {}
        if not self.is_hidden(key) and os.path.isdir(key):
            names = {name: os.path.join(key, name) for name in os.listdir(key)}
            names = {n: path for n, path in names.items() if path not in self.hidden}
        if os.path.isdir(above):
            names |= {name: os.path.join(above, name) for name in os.listdir(above)}
        return names

    def place(self, key: str, path: Any) -> str:
        """Where to make a file or a folder; the folder it is in must exist."""
        parent = os.path.dirname(key)
        if not os.path.isdir(self.found(parent)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        os.makedirs(self.root + parent, exist_ok=True)
        return self.root + key

    def writable(self, path: Any, dir_fd: int | None = None, *, empty: bool, new: bool) -> str:
        """Where to write a file, with its content unless `empty`; `new`: it must not exist."""
        key = self.key(path, dir_fd)
        if self.is_own(key):
            return key
        found = self.found(key)
        if os.path.isdir(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if new and os.path.lexists(found):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        above = self.place(key, path)
        if key in self.borrowed:
            self.borrowed.discard(key)
            found = os.readlink(above)
            os.unlink(above)
        if found != above and os.path.exists(found):
            if empty:
                Path(above).touch()
            else:
                shutil.copyfile(found, above)
        return above

    def borrow(self, key: str) -> None:
        """All that is at the key lies in the layer above then, without a copy of its content."""
        found, above = self.found(key), self.root + key
        if os.path.isdir(found) and not os.path.islink(found):
            names = self.names(key)
            os.makedirs(above, exist_ok=True)
            for name in names:
                self.borrow(os.path.join(key, name))
        elif found != above:
            os.makedirs(os.path.dirname(above), exist_ok=True)
            if os.path.islink(found):
                os.symlink(os.path.realpath(found), above)
            else:
                os.symlink(found, above)
                self.borrowed.add(key)

    def readable(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """The path itself where nothing was changed: messages then name what the program named."""
        key = self.key(path, dir_fd, follow=follow)
        found = self.found(key)
        if found == key:
            said = os.path.join(os.getcwd(), os.fsdecode(path))
            return path if dir_fd is None and real(said, follow) == key else key
        return os.path.realpath(found) if key in self.borrowed else found

    # --- what happened ----------------------------------------------------------------------------

    def written(self) -> list[str]:
        """Files that would have been written."""
        return _told(
            os.path.join(folder, name)[len(self.root) :]
            for folder, _, names in os.walk(self.root)
            for name in names
        )

    def removed(self) -> list[str]:
        """Files and folders that would have been removed."""
        gone = [k for k in self.hidden if os.path.lexists(k) and not os.path.lexists(self.root + k)]
        return _told(key for key in gone if not self.is_hidden(os.path.dirname(key)))

    def summary(self) -> str:
        """What did not happen, in one line; empty when there is nothing."""
        written, removed = self.written(), self.removed()
        parts = [f"{_files(written)} not written"] if written else []
        parts += [f"{_files(removed)} not removed"] if removed else []
        return "; ".join(parts)


def _told(paths: Iterable[str]) -> list[str]:
    """As a user calls them, those in the working folder first."""
    here = os.getcwd()
    told = [os.path.relpath(path, here) if is_under(path, here) else path for path in paths]
    return sorted(told, key=lambda path: (path.startswith("/"), path))


def _files(paths: list[str], most: int = 5) -> str:
    """`2 files (a, b)`."""
    names = ", ".join(paths[:most]) + (", ..." if len(paths) > most else "")
    return f"{len(paths)} file{'s' * (len(paths) > 1)} ({names})"


def real(path: str, follow: bool) -> str:
    """The path without links; the last part is one, maybe, unless it is to be followed."""
    folder, name = os.path.split(path.rstrip("/") or "/")
    if follow or name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def is_under(path: str, folder: str) -> bool:
    """Whether it is the folder, or in it."""
    return path == folder or path.startswith(folder + "/")
