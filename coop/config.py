"""How a budget works: one frozen `Config`, the same for `coop.budget` and `coop.install`."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypedDict, get_args

import torch

from coop._native import _C
from coop.machine import memory_bytes, room_for_copies
from coop.profiles import LINKS, Link
from coop.sizes import format_bytes, parse_bytes

__all__ = [
    "Config",
    "ConfigChanges",
    "PolicyName",
    "changed",
    "choose_device",
    "parse_room",
]

PolicyName = Literal["coop", "coop-paper", "dtr", "dte"]

# Below this not even the area for small tensors has room.
SMALLEST_BUDGET_BYTES = 64 * 1024
# Blocks begin at multiples of these, by type of device.
ALIGNMENT = {"cpu": 64, "cuda": 512}
# `quiet_after` where it is not given, by type of device. Never in main memory, where what has to be
# saved after all would be outside of the budget.
QUIET_AFTER = {"cpu": 0, "cuda": 4}


@dataclass(frozen=True)
class Config:
    """What a budget does, apart from its size and its device.

    Attributes:
        policy: what chooses the evictions: `"coop"`; `"coop-paper"`, the same as published, without
            what docs/decisions/0004 adds; or the baselines `"dtr"` and `"dte"`.
        window: with `"coop"`, evict the cheapest contiguous window (else one value at a time).
        partition: with `"coop"`, place cheap and expensive values at opposite ends.
        inplace: with `"coop"`, keep in-place writes in place (else copy on write).
        measure_costs: time operators in the first steps, and decide by that instead of a roofline
            estimate. Costs are kept for the next run on such a device. None: on a GPU, and not on
            the CPU, where decisions are the same in every run without it. Results always are.
        events: remember what happens to every block, for `session.save_report`.
        paranoid: evict everything that can be after every operator. For tests.
        small_bytes: values up to this size live in an area of their own and are never evicted.
        quiet_after: after so many steps that fitted without an eviction, operators are not recorded
            any more, until one does not fit: what was not recorded is then saved to main memory
            when it is evicted. 0: never. None: 0 on the CPU, 4 on a GPU.
        background: make schedules on a thread of their own, while training goes on. Else at the end
            of a step. None: on a GPU, and not on the CPU, where decisions are the same in every run
            without it. Results always are.
        host: room for copies of values that leave the budget, parameters and optimizer state
            included: bytes, or a size such as `"4GiB"`; 0 for none. On a GPU it is page-locked main
            memory, taken as it is needed and kept, for each GPU; `"auto"` is half of what is
            available then (a quarter under WSL), and 0 on the CPU, where the folder has to be
            named.
        host_dir: for the CPU, an existing folder on a local disk, where that room is.
    """

    policy: PolicyName = "coop"
    window: bool = True
    partition: bool = True
    inplace: bool = True
    measure_costs: bool | None = None
    events: bool = False
    paranoid: bool = False
    small_bytes: int = 10 * 1024
    quiet_after: int | None = None
    background: bool | None = None
    host: int | str = 0
    host_dir: str | None = None

    def __post_init__(self) -> None:
        policies = get_args(PolicyName)
        if self.policy not in policies:
            known = ", ".join(policies[:-1]) + f" or {policies[-1]}"
            raise ValueError(f"unknown policy {self.policy!r}; choose {known}")
        if self.small_bytes < 0:
            raise ValueError(f"small_bytes is a number of bytes, not {self.small_bytes}")
        if self.quiet_after is not None and self.quiet_after < 0:
            raise ValueError(
                f"quiet_after is a number of steps, or 0 for never, not {self.quiet_after}"
            )
        parse_room(self.host)

    def host_bytes(self, device_type: str) -> int:
        """Room for copies, as it is now; 0: none."""
        room = parse_room(self.host)
        if isinstance(room, int):
            return room
        return room_for_copies() if device_type == "cuda" else 0

    def measures_costs(self, device_type: str) -> bool:
        """Whether operators are timed there."""
        return device_type == "cuda" if self.measure_costs is None else self.measure_costs

    def check_device(self, device: torch.device) -> None:
        """Raises for what the device does not have."""
        num_bytes = self.host_bytes(device.type)
        if device.type != "cpu":
            if self.host_dir is not None:
                raise ValueError(
                    "host_dir= is for device='cpu': copies of what is on a GPU are in main memory"
                )
            if num_bytes > memory_bytes():
                raise ValueError(
                    f"host={self.host!r} is more than the {format_bytes(memory_bytes())} of main "
                    "memory that there are here: choose less"
                )
            return
        if num_bytes == 0:
            return
        if self.host_dir is None:
            raise ValueError(
                f"host={self.host!r} is room in a file: name its folder, as in host_dir='/scratch'"
            )
        folder = Path(self.host_dir)
        if not folder.is_dir():
            raise ValueError(f"host_dir={self.host_dir!r} is no folder: make it, or name another")
        free_bytes = shutil.disk_usage(folder).free
        if num_bytes > free_bytes:
            raise ValueError(
                f"host={self.host!r} is more than the {format_bytes(free_bytes)} that "
                f"{self.host_dir} has left: choose less, or another folder"
            )

    def native(self, num_bytes: int, device_type: str, link: Link | None = None) -> _C.Config:
        """As the extension takes it, for an arena of so many bytes.

        `link` is the device's to main memory; None: a usual one.
        """
        if num_bytes < SMALLEST_BUDGET_BYTES:
            raise ValueError(
                f"a budget of {num_bytes} bytes is too small: at least "
                f"{format_bytes(SMALLEST_BUDGET_BYTES)}"
            )
        quiet_after = QUIET_AFTER[device_type] if self.quiet_after is None else self.quiet_after
        return _C.Config(
            num_bytes,
            self.policy,
            window=self.window,
            partition=self.partition,
            inplace=self.inplace,
            alignment=ALIGNMENT[device_type],
            small_bytes=self.small_bytes,
            quiet_after=quiet_after,
            in_background=device_type == "cuda" if self.background is None else self.background,
            host_bytes=self.host_bytes(device_type),
            link=_C.LinkProfile(**asdict(link or LINKS[device_type])),
        )


def parse_room(size: int | str) -> int | str:
    """Bytes for copies: a size as of a budget, 0 for none, or `"auto"` as it is."""
    return size if size == "auto" else 0 if size in (0, "0") else parse_bytes(size)


class ConfigChanges(TypedDict, total=False):
    """The fields of `Config`, as keyword arguments."""

    policy: PolicyName
    window: bool
    partition: bool
    inplace: bool
    measure_costs: bool | None
    events: bool
    paranoid: bool
    small_bytes: int
    quiet_after: int | None
    background: bool | None
    host: int | str
    host_dir: str | None


def changed(config: Config, changes: ConfigChanges, caller: str) -> Config:
    """The configuration with these changes; `caller` is whose keyword arguments they are."""
    if not isinstance(config, Config):
        raise TypeError(f"{caller}: config is a coop.Config, not {config!r}")
    known = [field.name for field in fields(Config)]
    for name in changes:
        if name not in known:
            raise TypeError(
                f"{caller} has no argument {name!r}: there are size, device, config, and the "
                f"fields of coop.Config ({', '.join(known)})"
            )
    return replace(config, **changes)


def has_gpu() -> bool:
    """Whether torch has CUDA, so have we, and a GPU is there. Does not start torch's CUDA."""
    return _C.has_cuda and torch.cuda.is_available()


def choose_device(device: str | torch.device | None) -> torch.device:
    """Where the budget is: with an index if it is a GPU.

    None is the GPU if there is one. Without an index it is the GPU that torchrun means this worker
    to use, else the first one.
    """
    if device is None:
        device = "cuda" if has_gpu() else "cpu"
    chosen = torch.device(device)
    if chosen.type not in ALIGNMENT:
        raise ValueError(f"a budget is for 'cpu' or 'cuda', not for {str(chosen)!r}")
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", _local_index())
    return chosen


def _local_index() -> int:
    index = int(os.environ.get("LOCAL_RANK", "0"))
    return index if 0 < index < torch.cuda.device_count() else 0
