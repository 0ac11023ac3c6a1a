"""Kinds of arguments that several commands take."""

import argparse
from pathlib import Path

from coop.options import parse_output
from coop.sizes import LARGEST_BYTES, parse_bytes

__all__ = ["output_path", "room", "size"]


def size(text: str) -> int:
    """A size in bytes, such as `8GiB`."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def room(text: str) -> int:
    """Room for copies: a size, 0 for none, or `auto`, which is more than anything takes."""
    if text == "auto":
        return LARGEST_BYTES
    return 0 if text == "0" else size(text)


def output_path(text: str) -> Path:
    """A file that can be written; found out before the work, not after it."""
    try:
        return parse_output(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
