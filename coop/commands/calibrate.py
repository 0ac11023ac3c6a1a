"""`python -m coop calibrate`: measure this machine, as a device that plans can be made for."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from coop.commands._arguments import output_path
from coop.links import measure_link
from coop.profiles import Device, Profile, save_device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("file", metavar="FILE", type=output_path, help="e.g. this-machine.json")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: the GPU, if there is one"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, writes, prints."""
    kind = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        print("coop calibrate: there is no CUDA device here", file=sys.stderr)
        return 2
    device = measured_device(kind)
    path: Path = args.file
    save_device(device, path)
    profile, link = device.profile, device.link
    # Copies of what is in main memory are in a file, which depends on the folder.
    usual = "" if device.is_gpu else " (not measured)"
    table = Table(show_header=False, box=None, pad_edge=False)
    for row in (
        (device.name, ""),
        ("float32 products", f"{profile.flops_per_ns / 1e3:.2f} TFLOP/s"),
        ("bfloat16 products", f"{profile.half_flops_per_ns / 1e3:.2f} TFLOP/s"),
        ("memory", f"{profile.bytes_per_ns:.1f} GB/s"),
        ("a small operator", f"{profile.launch_ns / 1e3:.2f} us"),
        ("to main memory", f"{link.out_bytes_per_second / 1e9:.1f} GB/s{usual}"),
        ("and back", f"{link.in_bytes_per_second / 1e9:.1f} GB/s{usual}"),
        ("a small copy", f"{link.latency_ns / 1e3:.2f} us{usual}"),
    ):
        table.add_row(*row)
    Console(soft_wrap=True, highlight=False).print(table)
    print(f"use it: python -m coop plan --device {args.file.name} TRACE")
    return 0


def measured_device(kind: str) -> Device:
    """The rates that large operators reach on this machine; takes some seconds."""
    on_gpu = kind == "cuda"
    size = 8192 if on_gpu else 1024
    elements = 2**28 if on_gpu else 2**24
    x = torch.randn(elements, device=kind)
    y = torch.empty_like(x)
    small = torch.zeros(1, device=kind)

    def products_per_ns(dtype: torch.dtype) -> float:
        a = torch.randn(size, size, device=kind).to(dtype)
        out = torch.empty_like(a)
        return 2 * size**3 / _fastest_ns(lambda: torch.mm(a, a, out=out), on_gpu)

    def add_many() -> None:
        for _ in range(1000):
            torch.add(small, 1)

    profile = Profile(
        flops_per_ns=products_per_ns(torch.float32),
        half_flops_per_ns=products_per_ns(torch.bfloat16),
        bytes_per_ns=2 * x.nbytes / _fastest_ns(lambda: torch.mul(x, 2.0, out=y), on_gpu),
        launch_ns=_fastest_ns(add_many, on_gpu) / 1000,
    )
    if on_gpu:
        properties = torch.cuda.get_device_properties(0)
        link = measure_link(torch.device("cuda", 0), both=True)
        return Device(properties.name, profile, properties.total_memory, link=link)
    return Device("this CPU", profile, 0)


def _fastest_ns(run: Callable[[], object], on_gpu: bool) -> float:
    """Of seven, after one to warm up."""
    times = []
    for _ in range(8):
        begin = time.perf_counter_ns()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begin)
    return float(min(times[1:]))
