"""Every option once: its name, its flag of `coop run`, its environment variable, its field.

What is given in the program or on the command line comes first, then the environment, then the
default. Fields of `coop.Config` make their own rows.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from coop.budget_size import check_size
from coop.config import Config, ConfigChanges, parse_room
from coop.files import why_not_writable
from coop.sizes import parse_bytes

__all__ = [
    "CONFIG_OPTIONS",
    "OPTIONS",
    "Option",
    "config_from_environment",
    "from_environment",
    "option",
]

DEVICES = ("cpu", "cuda")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Option:
    """One row of the table."""

    name: str
    help: str
    parse: Callable[[str], Any]  # raises ValueError
    metavar: str = ""
    choices: tuple[str, ...] = ()
    is_field: bool = False  # of coop.Config
    is_for_run: bool = False  # of `coop run` alone
    default: object = None

    @property
    def flag(self) -> str:
        """Of `coop run`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Of the environment."""
        return "COOP_" + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value: `--live`, `--no-window`."""
        return self.parse is parse_switch

    def from_environment(self) -> Any:
        """What the environment says; None when it says nothing."""
        text = os.environ.get(self.variable, "")
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.variable}: {error}") from None


# --- values ---------------------------------------------------------------------------------------


def parse_switch(text: str) -> bool:
    """`1`, `true`, `yes` or `on`, and their contraries."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither yes nor no: write 1 or 0")


def parse_budget(text: str) -> str:
    """A size in bytes, or a share of the free memory, such as `80%`; as it was written."""
    check_size(text)
    return text


def parse_output(text: str) -> Path:
    """A file that can be written; found out before the work, not after it."""
    path = Path.cwd() / text
    reason = why_not_writable(path)
    if reason:
        raise ValueError(reason)
    return path


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _one_of(what: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    known = ", ".join(choices[:-1]) + f" or {choices[-1]}"

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not a {what}; choose {known}")
        return text

    return parse


# --- the table ------------------------------------------------------------------------------------


def _field_option(name: str, kind: Any, default: object, text: str) -> Option:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    (first, *_) = (each for each in kinds if each is not NoneType)
    if get_origin(first) is Literal:
        choices = get_args(first)
        parse: Callable[[str], Any] = _one_of(name, choices)
        return Option(name, text, parse, choices=choices, is_field=True, default=default)
    parse, metavar = {bool: (parse_switch, ""), int: (_parse_int, "N")}.get(first, (str, "TEXT"))
    if name.endswith("_bytes"):
        parse, metavar = parse_bytes, "BYTES"
    elif set(kinds) == {int, str}:
        parse, metavar = parse_room, "BYTES"
    return Option(name, text, parse, metavar, is_field=True, default=default)


def _field_texts() -> dict[str, str]:
    """What the documentation of `Config` says of each field, in one sentence."""
    attributes = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): ((?:.|\n     )*)", attributes, re.MULTILINE)
    sentences = ((name, re.split(r"[.:;] ", " ".join(text.split()))[0]) for name, text in found)
    return {name: sentence.rstrip(".") for name, sentence in sentences}


def _config_options() -> tuple[Option, ...]:
    kinds, texts = get_type_hints(Config), _field_texts()
    return tuple(
        _field_option(field.name, kinds[field.name], field.default, texts[field.name])
        for field in fields(Config)
    )


CONFIG_OPTIONS = _config_options()
OPTIONS = (
    Option(
        "budget",
        "how much memory: 8GiB, 600MB, or a share of what is free, such as 80%"
        " (default: what is free, less a margin)",
        parse_budget,
        "BYTES",
    ),
    Option(
        "device",
        "whose memory (default: the GPU's, if there is one)",
        _one_of("device", DEVICES),
        choices=DEVICES,
    ),
    *CONFIG_OPTIONS,
    Option("report", "write an HTML report", parse_output, "FILE", is_for_run=True),
    Option("snapshot", "write a memory_viz snapshot", parse_output, "FILE", is_for_run=True),
    Option("chrome_trace", "write a trace for Perfetto", parse_output, "FILE", is_for_run=True),
    Option("trace", "write a trace for `coop plan`", parse_output, "FILE", is_for_run=True),
    Option("source_lines", "in the trace, the lines of your code", parse_switch, is_for_run=True),
    Option("live", "while it runs, a line that says how it goes", parse_switch, is_for_run=True),
    Option("quiet", "say nothing, also at the end", parse_switch),
)
_BY_NAME: Mapping[str, Option] = {each.name: each for each in OPTIONS}


def option(name: str) -> Option:
    """By its name."""
    return _BY_NAME[name]


def from_environment(name: str) -> Any:
    """What the environment says of this option; None when it says nothing."""
    return option(name).from_environment()


def config_from_environment() -> Config:
    """The configuration of a program that gives none."""
    values = {each.name: each.from_environment() for each in CONFIG_OPTIONS}
    return Config(**cast(ConfigChanges, {n: v for n, v in values.items() if v is not None}))
