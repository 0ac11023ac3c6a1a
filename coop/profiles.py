"""What devices can do: the numbers of the roofline that estimates the cost of operators.

profiles.json holds what data sheets say, with their titles; large operators reach a share of that
in practice.
`python -m coop calibrate` measures a machine instead, and `get_profile` reads what it wrote.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from coop.files import write_whole

__all__ = [
    "CPU_PROFILE",
    "LINKS",
    "Device",
    "Link",
    "Profile",
    "cuda_link",
    "cuda_profile",
    "devices",
    "get_device",
    "get_profile",
    "save_device",
]

_SHEETS = Path(__file__).with_name("profiles.json")
_FORMAT = "coop-device"


@dataclass(frozen=True)
class Profile:
    """Rates that large operators reach in practice, and what a small one costs at least."""

    flops_per_ns: float
    half_flops_per_ns: float
    bytes_per_ns: float
    launch_ns: float


@dataclass(frozen=True)
class Link:
    """How quickly bytes leave a device for main memory, and come back."""

    out_bytes_per_second: float
    in_bytes_per_second: float
    latency_ns: float


# Each way while the other way is busy too, by the generation of PCI Express with 16 lanes: 5 was
# measured on an H200 (2026-11-17), the others are in its proportion.
_PCIE = {3: Link(12.5e9, 12.5e9, 10e3), 4: Link(25e9, 25e9, 10e3), 5: Link(51e9, 51e9, 10e3)}
# By type of device; of the CPU a file of a local disk, as far as the system caches it.
LINKS = {"cpu": Link(2e9, 2e9, 20e3), "cuda": _PCIE[4]}
# Those that profiles.json does not have.
_HAS_PCIE_5 = re.compile(r"\b(H100|H800|H20|B300|RTX 50\d\d|RTX PRO)\b")


@dataclass(frozen=True)
class Device:
    """A device that a plan can be made for."""

    name: str
    profile: Profile
    memory_bytes: int  # 0: a CPU, whose memory is not known
    match: str = ""  # what the driver's name of it contains, as a regular expression
    link: Link = LINKS["cpu"]  # to main memory; of a CPU, to a file

    @property
    def is_gpu(self) -> bool:
        """Whether it is one, with memory of its own."""
        return self.memory_bytes > 0


CPU_PROFILE = Profile(flops_per_ns=60, half_flops_per_ns=60, bytes_per_ns=8, launch_ns=1000)


@cache
def devices() -> dict[str, Device]:
    """The devices of profiles.json and the CPU, by name."""
    data = json.loads(_SHEETS.read_text(encoding="utf-8"))
    result = {"cpu": Device("cpu", CPU_PROFILE, 0)}
    for name, sheet in data["devices"].items():
        profile = Profile(
            flops_per_ns=sheet["fp32_tflops"] * 1e3 * data["share_of_compute"],
            half_flops_per_ns=sheet["half_tflops"] * 1e3 * data["share_of_compute"],
            bytes_per_ns=sheet["gb_per_s"] * data["share_of_bandwidth"],
            launch_ns=sheet["launch_us"] * 1e3,
        )
        memory_bytes = int(sheet["memory_gb"] * 1e9)
        result[name] = Device(name, profile, memory_bytes, sheet["match"], _PCIE[sheet["pcie"]])
    return result


def get_device(name: str) -> Device:
    """A device of `devices()`, or one that `python -m coop calibrate` wrote to the file `name`."""
    known = devices().get(name.lower())
    if known is not None:
        return known
    try:
        data: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT:
            raise KeyError("format")
        profile = Profile(**_rates(data.pop("profile")))
        # Files of before it was measured have none.
        usual = LINKS["cuda" if data["memory_bytes"] else "cpu"]
        link = Link(**_rates(data.pop("link"))) if "link" in data else usual
        return Device(profile=profile, link=link, **data)
    except OSError:
        raise ValueError(
            f"unknown device {name!r}: choose {', '.join(devices())}, or a file that "
            "`python -m coop calibrate` wrote"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{name} is not a file that `python -m coop calibrate` wrote") from None


def _rates(data: dict[str, Any]) -> dict[str, float]:
    rates = {key: float(rate) for key, rate in data.items()}
    if not all(0 < rate < math.inf for rate in rates.values()):
        raise ValueError("no rate")
    return rates


def save_device(device: Device, path: str | Path) -> None:
    """Write a device for `get_device`."""
    data = {"format": _FORMAT, **asdict(device)}
    write_whole(path, (json.dumps(data, indent=1) + "\n").encode())


def get_profile(name: str) -> Profile:
    """The profile of `get_device(name)`."""
    return get_device(name).profile


def cuda_profile(name: str) -> Profile:
    """The profile of the GPU called `name` by the driver; that of an A100 when it is not known."""
    known = _find_known(name)
    if known is not None:
        return known.profile
    family = next((d for d in devices().values() if _family(d.name) in name), None)
    return (family or devices()["a100-80"]).profile


def cuda_link(name: str) -> Link:
    """The link of the GPU called `name` by the driver."""
    known = _find_known(name)
    if known is not None:
        return known.link
    return _PCIE[5] if _HAS_PCIE_5.search(name) else LINKS["cuda"]


def _find_known(name: str) -> Device | None:
    # Whole words: "A100" contains "A10".
    return next(
        (d for d in devices().values() if d.match and re.search(rf"\b(?:{d.match})\b", name)), None
    )


def _family(name: str) -> str:
    return name.partition("-")[0].upper()
