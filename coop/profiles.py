"""What devices can do: the numbers of the roofline that estimates the cost of operators."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU_PROFILE", "Profile", "cuda_profile"]


@dataclass(frozen=True)
class Profile:
    """Rates that large operators reach in practice, and what a small one costs at least."""

    flops_per_ns: float
    half_flops_per_ns: float
    bytes_per_ns: float
    launch_ns: float


CPU_PROFILE = Profile(flops_per_ns=60, half_flops_per_ns=60, bytes_per_ns=8, launch_ns=1000)

# Dense rates; about 70% of what the data sheets say.
_CUDA_PROFILES = {
    "H200": Profile(45e3, 650e3, 3800, 3000),
    "H100": Profile(45e3, 650e3, 2500, 3000),
    "A100": Profile(14e3, 220e3, 1400, 4000),
    "L40": Profile(60e3, 180e3, 650, 4000),
    "L4": Profile(20e3, 60e3, 220, 4000),
    "V100": Profile(11e3, 80e3, 700, 5000),
    "T4": Profile(6e3, 30e3, 230, 5000),
    "4090": Profile(55e3, 150e3, 800, 4000),
    "3090": Profile(25e3, 60e3, 750, 4000),
}


def cuda_profile(name: str) -> Profile:
    """The profile of the GPU called `name` by the driver; that of an A100 when it is not known."""
    for key, profile in _CUDA_PROFILES.items():
        if key in name:
            return profile
    return _CUDA_PROFILES["A100"]
