"""Sizes as people write them."""

import pytest

from coop.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        (1, 1),
        (2**50, 2**50),
        ("1048576", 1048576),
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("8 gib", 8 * 2**30),
        (" 600MiB ", 600 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("0.1kB", 100),
        ("64B", 64),
        ("1TiB", 2**40),
        ("1.0001KiB", 1024),
    ],
)
def test_a_size_is_parsed(size: int | str, num_bytes: int) -> None:
    assert parse_bytes(size) == num_bytes


@pytest.mark.parametrize(
    "size", ["", "GiB", "8 G", "8XB", "-1", "1e9", "0x10", "1,5GB", "nan", "٣"]
)
def test_what_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write bytes as a number"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [0, -5, "0", "0GiB", "0.5B"])
def test_a_size_is_positive(size: int | str) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [2**50 + 1, "1025TiB", "9" * 400])
def test_a_size_is_not_absurd(size: int | str) -> None:
    with pytest.raises(ValueError, match=r"at most 2\*\*50 bytes"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [1.5, True, None])
def test_a_size_is_an_int_or_a_str(size: object) -> None:
    with pytest.raises(TypeError, match="a size is an int or a str"):
        parse_bytes(size)  # type: ignore[arg-type]


def test_bytes_are_shown_with_a_unit() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 * 2**29, 2**41)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 GiB",
        "2.00 TiB",
    ]
