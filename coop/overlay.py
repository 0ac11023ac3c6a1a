"""Files that a program changes, without changing them.

What the program writes, removes or renames happens in a folder of our own, laid over the file
system: it reads back what it wrote, does not find what it removed, and the files themselves stay as
they are. This works by Python's own functions (`open` and those of `os`, on which pathlib, shutil,
zipfile, NumPy and most others stand). For code that goes around them see `coop.confinement`.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coop.layers import Layers, is_under

__all__ = ["WRITES", "Overlay"]

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", -1)
# Their first argument is a path that they read. Those of the second kind do not follow a link.
_READERS = ("stat", "access", "getxattr", "listxattr", "statvfs")
_LINK_READERS = ("lstat", "readlink")
# What they change is not a file's content: of files that are not ours it stays.
_ATTRIBUTES = ("chmod", "lchmod", "chown", "lchown", "utime", "setxattr", "removexattr", "chflags")


class Overlay(Layers):
    """While it is entered, Python's functions work on the layers."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.active = False
        self._inside = threading.local()
        self._others: set[int | None] = set()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Overlay:
        """From now on."""
        # Threads that were there before are not the program's.
        threads = {thread.ident for thread in threading.enumerate()}
        self._others = threads - {threading.get_ident()}
        self._here = os.getcwd()
        for name in ("open", *_READERS, *_LINK_READERS, *_ATTRIBUTES):
            self.divert(os, name, self._make(name))
        for name in (
            *("listdir", "scandir", "mkdir", "rmdir", "remove", "unlink", "rename", "replace"),
            *("link", "symlink", "truncate", "chdir", "getcwd", "getcwdb", "mkfifo", "mknod"),
        ):
            self.divert(os, name, getattr(self, f"_{name}"))
        for module in (builtins, io):
            self.divert(module, "open", self._open_file)
        self.divert(sqlite3, "connect", self._connect)
        self.divert(sqlite3.dbapi2, "connect", self._connect)
        accessor = getattr(pathlib, "_NormalAccessor", None)  # until Python 3.10
        for name in list(vars(accessor)) if accessor else ():
            if not name.startswith("_") and hasattr(os, name):
                self._put(
                    accessor, name, staticmethod(io.open if name == "open" else vars(os)[name])
                )
        # It would look into folders by their descriptors.
        self._put(shutil, "_use_fd_functions", False)
        self._put(tempfile, "tempdir", self.temporary)
        self._put(sys, "dont_write_bytecode", True)
        self.active = True
        return self

    def __exit__(self, *_: object) -> None:
        self.active = False
        self._stack.close()
        if is_under(os.getcwd(), self.root):
            os.chdir(self._here)

    def on_leaving(self, function: Callable[..., Any], *args: Any) -> None:
        """For what else was changed."""
        self._stack.callback(function, *args)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        if hasattr(owner, name):
            self._stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)

    def divert(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Until it is left `function(original, ...)` is called instead, if there is one."""
        if name not in vars(owner):
            return
        original = getattr(owner, name)

        @functools.wraps(original)
        def diverting(*args: Any, **kwargs: Any) -> Any:
            # Somebody may still have it when the overlay is left.
            if not self.active or self._is_passing() or threading.get_ident() in self._others:
                return original(*args, **kwargs)
            with self.passing():
                return function(original, *args, **kwargs)

        self._put(owner, name, diverting)

    def _is_passing(self) -> bool:
        return getattr(self._inside, "passing", False)

    def name_for_opener(self) -> Any:
        """What `open` was called with by this thread, if it was given an opener."""
        return getattr(self._inside, "name", None)

    def passing(self) -> contextlib.AbstractContextManager[None]:
        """Within it this thread reaches the files themselves."""
        return self._set_passing(True)

    def diverting(self) -> contextlib.AbstractContextManager[None]:
        """The opposite, for what a function of ours calls."""
        return self._set_passing(False)

    @contextlib.contextmanager
    def _set_passing(self, value: bool) -> Iterator[None]:
        before, self._inside.passing = self._is_passing(), value
        try:
            yield
        finally:
            self._inside.passing = before

    # --- the functions ----------------------------------------------------------------------------

    def _open_file(self, original: Any, file: Any, mode: str = "r", *args: Any, **kw: Any) -> Any:
        opener = kw.get("opener") or (args[5] if len(args) > 5 else None)
        if isinstance(file, int) or opener is not None or not isinstance(mode, str):
            # An opener asks for a descriptor by os.open.
            before, self._inside.name = self.name_for_opener(), file
            try:
                with self.diverting():
                    return original(file, mode, *args, **kw)
            finally:
                self._inside.name = before
        if set(mode) & set("wax+"):
            where = self.writable(file, empty="w" in mode, new="x" in mode)
        else:
            where = self.readable(file)
        return original(where, mode, *args, **kw)

    def _make(self, name: str) -> Callable[..., Any]:
        """A function of os that takes one path and does not make or remove anything."""
        follow_always = name not in _LINK_READERS

        def function(original: Any, path: Any, *args: Any, dir_fd: Any = None, **kw: Any) -> Any:
            if isinstance(path, int):
                return original(path, *args, **kw)
            follow = follow_always and kw.get("follow_symlinks", True)
            if name == "open":
                flags = args[0] if args else kw["flags"]
                if flags & _UNNAMED == _UNNAMED and not self.is_own(self.key(path, dir_fd)):
                    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
                if flags & WRITES and not flags & os.O_DIRECTORY:
                    empty, new = bool(flags & os.O_TRUNC), bool(flags & os.O_EXCL)
                    where = self.writable(path, dir_fd, empty=empty, new=new)
                    return original(where, *args, **kw)
            if name in _ATTRIBUTES:
                key = self.key(path, dir_fd, follow=follow)
                if not os.path.lexists(self.root + key) and not self.is_own(key):
                    os.lstat(self.found(key))  # an error if it is not there
                    return None
            where = self.readable(path, dir_fd, follow=follow)
            result = original(where, *args, **kw)
            if name == "readlink":
                bare = self.bare(os.fsdecode(result))
                return os.fsencode(bare) if isinstance(result, bytes) else bare
            return result

        return function

    def _connect(self, original: Any, database: Any, *args: Any, **kw: Any) -> Any:
        """A database is read and written by code that is not Python's."""
        if database in (":memory:", "") or kw.get("uri"):
            return original(database, *args, **kw)
        return original(self.writable(database, empty=False, new=False), *args, **kw)

    def _listdir(self, original: Any, path: Any = ".") -> Any:
        if isinstance(path, int):
            return original(path)
        key = self.key(path)
        if not os.path.isdir(self.found(key)) or not self._is_changed(key):
            return original(self.readable(path))
        names = list(self.names(key))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, original: Any, path: Any = ".") -> Any:
        if isinstance(path, int):
            return original(path)
        key = self.key(path)
        if not os.path.isdir(self.found(key)) or not self._is_changed(key):
            return original(path)
        entries = [
            _Entry(name, os.path.join(os.fsdecode(path), name), where)
            for name, where in self.names(key).items()
        ]
        return _Entries(entries)

    def _is_changed(self, key: str) -> bool:
        here = os.getcwd()
        return bool(self.hidden) or os.path.isdir(self.root + key) or is_under(here, self.root)

    def _mkdir(self, original: Any, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> Any:
        key = self.key(path, dir_fd, follow=False)
        if self.is_own(key):
            return original(key, mode)
        if os.path.lexists(self.found(key)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return original(self.place(key, path), mode)

    def _mkfifo(self, original: Any, path: Any, *args: Any, dir_fd: Any = None) -> Any:
        key = self.key(path, dir_fd, follow=False)
        original(key if self.is_own(key) else self.place(key, path), *args)

    _mknod = _mkfifo

    def _rmdir(self, original: Any, path: Any, *, dir_fd: Any = None) -> Any:
        key = self.key(path, dir_fd, follow=False)
        found = self.found(key)
        if self.is_own(key) or not os.path.isdir(found) or os.path.islink(found):
            return original(found if found != key else self._must_be_wrong(key, path))
        if self.names(key):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if os.path.isdir(self.root + key):
            original(self.root + key)
        self.hidden.add(key)
        return None

    def _must_be_wrong(self, key: str, path: Any) -> str:
        """For functions that fail there anyway, and must not be tried on the file itself."""
        if self.is_own(key):
            return key
        code = errno.ENOTDIR if os.path.lexists(key) else errno.ENOENT
        raise OSError(code, os.strerror(code), path)

    def _remove(self, original: Any, path: Any, *, dir_fd: Any = None) -> Any:
        key = self.key(path, dir_fd, follow=False)
        found = self.found(key)
        if self.is_own(key):
            return original(key)
        if not os.path.lexists(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if os.path.isdir(found) and not os.path.islink(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if os.path.lexists(self.root + key):
            original(self.root + key)
        self.borrowed.discard(key)
        self.hidden.add(key)
        return None

    _unlink = _remove

    def _rename(
        self, original: Any, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None
    ) -> Any:
        old = self.key(src, src_dir_fd, follow=False)
        new = self.key(dst, dst_dir_fd, follow=False)
        if self.is_own(old) and self.is_own(new):
            return original(old, new)
        if not os.path.lexists(self.found(old)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src, None, dst)
        if old == new:
            return None
        there = self.found(new)
        if os.path.isdir(there) and not os.path.islink(there):
            if not os.path.isdir(self.found(old)):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), src, None, dst)
            if self.names(new):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), src, None, dst)
        if self.is_own(old):  # from the temporary folder: its content is there already
            return shutil.move(old, self.place(new, dst))
        if self.is_own(new):
            shutil.copy(os.path.realpath(self.found(old)), new)
            return self._remove(os.unlink, old)
        self.borrow(old)
        original(self.root + old, self.place(new, dst))
        self.borrowed.discard(new)
        moved = {key for key in self.borrowed if is_under(key, old)}
        self.borrowed = (self.borrowed - moved) | {new + key[len(old) :] for key in moved}
        self.hidden.add(old)
        return None

    _replace = _rename

    def _link(self, original: Any, src: Any, dst: Any, **kw: Any) -> None:
        found = self.found(self.key(src, kw.get("src_dir_fd")))
        where = self.writable(dst, kw.get("dst_dir_fd"), empty=True, new=True)
        shutil.copyfile(os.path.realpath(found), where)

    def _symlink(self, original: Any, src: Any, dst: Any, *args: Any, dir_fd: Any = None) -> None:
        key = self.key(dst, dir_fd, follow=False)
        if os.path.lexists(self.found(key)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        target = self.key(os.path.join(os.path.dirname(key), os.fsdecode(src)))
        original(self.found(target), key if self.is_own(key) else self.place(key, dst))

    def _truncate(self, original: Any, path: Any, length: int) -> Any:
        if isinstance(path, int):
            return original(path, length)
        os.stat(self.found(self.key(path)))  # an error if it is not there
        return original(self.writable(path, empty=length == 0, new=False), length)

    def _chdir(self, original: Any, path: Any) -> None:
        original(path if isinstance(path, int) else self.readable(path))

    def _getcwd(self, original: Any) -> str:
        return self.bare(original())

    def _getcwdb(self, original: Any) -> bytes:
        return os.fsencode(self.bare(os.fsdecode(original())))


class _Entry:
    """What `os.scandir` gives: where it lies is not what the program calls it."""

    def __init__(self, name: str, path: str, where: str) -> None:
        self.name = name
        self.path = path
        self._where = where

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self._where, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_symlink(self) -> bool:
        return os.path.islink(self._where)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self._where) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self._where) and (follow_symlinks or not self.is_symlink())

    def is_junction(self) -> bool:
        return False


class _Entries:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
