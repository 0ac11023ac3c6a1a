"""Writing files whole or not at all."""

import os
import tempfile
from pathlib import Path

__all__ = ["why_not_writable", "write_whole"]


def why_not_writable(path: str | Path) -> str:
    """Why a file could not be written there, in one line; empty when it can."""
    path = Path(path)
    if path.is_dir():
        return f"cannot write {str(path)!r}: it is a directory"
    # What is written takes the place of what is there: a device must not be lost so.
    if path.exists() and not path.is_file():
        return f"cannot write {str(path)!r}: it is not a regular file"
    if not path.parent.is_dir():
        return f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}"
    try:
        # Only trying tells: root may write anywhere, but not into /proc or a read-only file system.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        where = f"no file can be made in {str(path.parent)!r}"
        return f"cannot write {str(path)!r}: {where} ({error.strerror})"
    return ""


def write_whole(path: str | Path, content: bytes) -> None:
    """Write the file: afterwards it has all of the content, or, on an error, is as it was."""
    path = Path(path)
    reason = why_not_writable(path)
    if reason:
        raise OSError(reason)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        # As open() would have made it: mkstemp keeps others out.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(f"cannot write {str(path)!r}: {error.strerror}") from None
        raise
