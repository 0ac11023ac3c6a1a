"""Sizes in bytes: `8GiB`, `600 MB`, `1.5GiB`, or a plain number."""

import re
from decimal import Decimal

__all__ = ["LARGEST_BYTES", "format_budget", "format_bytes", "parse_bytes", "parse_share"]

# Nothing real is larger (a pebibyte), and sums of a few thousand such sizes still fit 64 bits.
LARGEST_BYTES = 2**50

_PREFIXES = ("", "k", "m", "g", "t")
_UNITS = {
    "": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES) if prefix},
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(size: int | str) -> int:
    """The number of bytes `size` says; a fraction of a byte is dropped.

    `"8GiB"` is 8 * 2**30 and `"8GB"` is 8 * 10**9; the case of the unit does not matter. Raises
    `ValueError` for what is not a size, and for sizes that are not positive or are absurd, and
    `TypeError` for what is neither `int` nor `str`.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is an int or a str, not {type(size).__name__}")
    if isinstance(size, int):
        num_bytes = size
    else:
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(
                f"{size!r} is not a size: write bytes as a number, or use one of the units "
                "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in '8GiB'"
            )
        num_bytes = int(Decimal(match[1]) * unit)
    if num_bytes < 1:
        raise ValueError(f"a size must be at least 1 byte, not {size!r}")
    if num_bytes > LARGEST_BYTES:
        raise ValueError(f"a size must be at most 2**50 bytes (1024 TiB), not {size!r}")
    return num_bytes


def parse_share(size: int | str) -> float | None:
    """`"80%"` as 0.8; None for what is no share. Raises `ValueError` for one that cannot be."""
    if not isinstance(size, str) or not size.strip().endswith("%"):
        return None
    try:
        share = float(size.strip()[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{size!r} is not a share of the free memory: write '1%' to '100%'")
    return share


def format_bytes(num_bytes: int) -> str:
    """`num_bytes` for people: `1.50 GiB`; below 1 KiB exactly."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def format_budget(num_bytes: int) -> str:
    """The same, never less than `num_bytes`: who takes it as a budget has enough."""
    text = format_bytes(num_bytes)
    if parse_bytes(text) >= num_bytes:
        return text
    number, unit = text.split()
    return f"{float(number) + 0.01:.2f} {unit}"
