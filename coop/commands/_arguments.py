"""Kinds of arguments that several commands take."""

import argparse
from pathlib import Path

from coop.files import why_not_writable
from coop.sizes import parse_bytes

__all__ = ["budget_size", "output_path", "size"]


def size(text: str) -> int:
    """A size in bytes, such as `8GiB`."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def budget_size(text: str) -> str:
    """A size in bytes, or a share of a GPU's free memory, such as `80%`; as it was written."""
    if not text.strip().endswith("%"):
        size(text)
    return text


def output_path(text: str) -> Path:
    """A file that can be written; found out before the work, not after it."""
    path = Path.cwd() / text
    reason = why_not_writable(path)
    if reason:
        raise argparse.ArgumentTypeError(reason)
    return path
