"""`python -m coop doctor`: what works here, what does not, and the command that fixes it.

Works where the rest of the package cannot even be imported, so it imports little, and late.
"""

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coop import releases
from coop.commands._surroundings import (
    Found,
    list_apps,
    look_at_container,
    look_at_locked_memory,
    look_at_mig,
    look_at_neighbours,
    look_at_pinned_memory,
    look_at_wsl,
)

OK, WARNING, MISSING, BROKEN = "ok", "warning", "missing", "broken"
# For the Python that is looked at, from any folder.
INSTALL = f"{shlex.quote(sys.executable)} -m pip install"
CHECKOUT = shlex.quote(str(Path(__file__).resolve().parents[2]))
REINSTALL = f"{INSTALL} --no-build-isolation -e {CHECKOUT}"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `missing` is optional, `broken` is not."""

    name: str
    state: str
    text: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only how to print."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Looks at everything. 0: a budget works here; 1: it does not."""
    findings = []
    broken = False
    for check in CHECKS:
        # Without torch or the extension, what needs them is not worth a line.
        if broken and check in NEEDS_EXTENSION:
            continue
        found = list(check())
        broken = broken or any(finding.state == BROKEN for finding in found)
        findings += found
    if args.json:
        print(json.dumps({"works": not broken, "findings": [asdict(f) for f in findings]}))
    else:
        for finding in findings:
            print(f"{finding.state:8}{finding.name:14}{finding.text}")
            if finding.fix:
                print(f"{'':22}fix: {finding.fix}")
    return 1 if broken else 0


def _python() -> Iterator[Finding]:
    yield Finding("python", OK, f"{platform.python_version()} ({sys.executable})")
    if platform.system() != "Linux":
        yield Finding("system", BROKEN, f"{platform.system()}, but coop needs Linux")


def _packages() -> Iterator[Finding]:
    for name in ("torch", "numpy", "rich"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            yield Finding(name, BROKEN, f"cannot be imported: {error}", f"{INSTALL} {name}")
        else:
            version = getattr(module, "__version__", None) or _version(name)
            yield Finding(name, OK, f"{version} ({Path(str(module.__file__)).parent})")
            if name == "torch":
                yield from _release(str(version))


def _release(version: str) -> Iterator[Finding]:
    tested = "{}.{} to {}.{}".format(*releases.OLDEST, *releases.NEWEST_TESTED)
    if releases.is_older(version):
        fix = f"{INSTALL} 'torch>={'.'.join(map(str, releases.OLDEST))}'"
        yield Finding("torch", BROKEN, f"{version} is too old: coop is for {tested}", fix)
    elif releases.is_newer(version):
        text = f"{version} is newer than what coop was tested with ({tested})"
        yield Finding("torch", WARNING, f"{text}; more is tried out below")


def _extension() -> Iterator[Finding]:
    try:
        native = importlib.import_module("coop._native")._C
    except ImportError as error:
        text = str(error).removeprefix("coop's native extension ").split(": run `")[0]
        yield Finding("extension", BROKEN, text, REINSTALL)
        if shutil.which(os.environ.get("CXX", "c++")) is None:
            yield Finding("compiler", BROKEN, "no C++ compiler", "apt-get install g++")
        return
    devices = "CPU and CUDA" if native.has_cuda else "CPU"
    yield Finding(
        "extension",
        OK,
        f"{native.__name__} for torch {native.torch_version}, {devices} ({native.__file__})",
    )


def _devices() -> Iterator[Finding]:
    import torch

    from coop._native import _C
    from coop.sizes import format_bytes

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding(
        "cpu", OK, f"{torch.get_num_threads()} threads of torch, {format_bytes(memory)} of memory"
    )
    if not torch.cuda.is_available():
        why = "no GPU is visible" if torch.version.cuda else "this torch was built without CUDA"
        yield Finding("cuda", MISSING, why + "; budgets are for the CPU's memory here")
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        text = f"{device.name}, {format_bytes(device.total_memory)}, CUDA {torch.version.cuda}"
        if _C.has_cuda:
            yield Finding(f"cuda:{index}", OK, text)
        else:
            text += "; but the extension was built without CUDA (no toolkit was found then)"
            yield Finding(f"cuda:{index}", MISSING, text, f"CUDA_HOME=/usr/local/cuda {REINSTALL}")
        free, total = torch.cuda.mem_get_info(index)
        # Torch's own context is in there too: with what it reserved, what this process has of it.
        used = total - free - torch.cuda.memory_reserved(index) - CONTEXT_BYTES
        yield from _findings(look_at_neighbours(index, used, list_apps(index)))
        yield from _findings(look_at_mig(index, device.name, visible))
    yield from _findings(look_at_pinned_memory())


def _surroundings() -> Iterator[Finding]:
    yield from _findings(look_at_container())
    yield from _findings(look_at_wsl())
    yield from _findings(look_at_locked_memory())


def _findings(found: Iterator[Found]) -> Iterator[Finding]:
    return (Finding(*each) for each in found)


# A CUDA context, at most.
CONTEXT_BYTES = 700 * 2**20
# Rows of a batch, and a budget that has to evict with them. On a GPU the libraries' workspaces must
# fit too.
SELF_TESTS = {"cpu": (1024, "10MiB"), "cuda": (65536, "512MiB")}


def _self_test() -> Iterator[Finding]:
    """A small training step inside a budget that has to evict, against the same one without."""
    import torch

    from coop._native import _C

    devices = ["cpu", *(["cuda"] if _C.has_cuda and torch.cuda.is_available() else [])]
    for device in devices:
        name = "budget" if device == "cpu" else "budget, cuda"
        try:
            expected = _train(device)
            # In a process of its own: a GPU's allocator must be chosen before CUDA starts.
            result = _train_in_budget(device) if device == "cpu" else _in_another_process(device)
        except Exception as error:  # whatever it is, it is the answer
            yield Finding(name, BROKEN, f"a test run failed: {error}".splitlines()[0])
            continue
        if result["weights"] != expected or result["num_evictions"] == 0:
            yield Finding(name, BROKEN, "a test run gave another result than without a budget")
            continue
        yield Finding(
            name,
            OK,
            f"a test run is bit-identical at {result['num_evictions']} evictions and "
            f"{result['num_replays']} recomputations",
        )


def _more_tests() -> Iterator[Finding]:
    """With a torch that is newer than what was tested: operators of many kinds, all evicted."""
    import torch

    if not releases.is_newer(torch.__version__):
        return
    from coop.commands._slice import PROGRAMS, run_program

    differing = []
    for name, program in PROGRAMS.items():
        try:
            if run_program(program, paranoid=True) != run_program(program, paranoid=False):
                differing.append(f"{name} (other bits)")
        except Exception as error:  # whatever it is, it is the answer
            differing.append(f"{name} ({type(error).__name__})")
    if differing:
        text = f"of {len(PROGRAMS)} small programs these go wrong: {', '.join(differing)}"
        tested = ".".join(map(str, releases.NEWEST_TESTED))
        yield Finding(
            "more tests", BROKEN, text, f"{INSTALL} 'torch=={tested}.*', then {REINSTALL}"
        )
    else:
        text = f"{len(PROGRAMS)} small programs with everything evicted are bit-identical"
        yield Finding("more tests", OK, text)


def _train(device: str) -> str:
    """Two steps; a checksum of the weights then."""
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(SELF_TESTS[device][0], 256, device=device)).square().mean().backward()
        optimizer.step()
    weights = [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


def _train_in_budget(device: str) -> dict[str, Any]:
    import coop

    with coop.budget(SELF_TESTS[device][1], device=device) as session:
        weights = _train(device)
    stats = session.stats()
    return {
        "weights": weights,
        "num_evictions": stats.num_evictions,
        "num_replays": stats.num_replays,
    }


def _in_another_process(device: str) -> dict[str, Any]:
    program = (
        "import json\nfrom coop.commands import doctor\n"
        f"print(json.dumps(doctor._train_in_budget({device!r})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def _extras() -> Iterator[Finding]:
    for name, packages, use in (
        ("matplotlib", "matplotlib", "PNG stills of reports and plans"),
        ("transformers", "transformers accelerate", "coop.integrations.hf"),
        ("lightning", "lightning", "coop.integrations.lightning"),
    ):
        if importlib.util.find_spec(name) is None:
            yield Finding(name, MISSING, f"optional, for {use}", f"{INSTALL} {packages}")
        else:
            yield Finding(name, OK, f"{_version(name)}, for {use}")


def _version(distribution: str) -> str:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return "of an unknown version"


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _extension,
    _surroundings,
    _devices,
    _self_test,
    _more_tests,
    _extras,
)
NEEDS_EXTENSION = (_devices, _self_test, _more_tests)
