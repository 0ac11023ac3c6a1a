"""Kinds of arguments that several commands take."""

import argparse
from pathlib import Path

from coop.options import parse_output
from coop.sizes import parse_bytes

__all__ = ["output_path", "size"]


def size(text: str) -> int:
    """A size in bytes, such as `8GiB`."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def output_path(text: str) -> Path:
    """A file that can be written; found out before the work, not after it."""
    try:
        return parse_output(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
