"""Builds the one native extension of coop against the torch that is installed.

`python setup.py build_ext --inplace` builds `coop._C`; with `COOP_DEBUG=1` in the environment it
builds `coop._C_debug` instead: the same sources with all invariant checks. With `COOP_UNITY=0` each
file is compiled by itself, which takes four times as long in all, but less after a change of one
file, or on many cores. Metadata is in pyproject.toml, but for what depends on torch.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup

try:
    import torch
    from torch.utils import cpp_extension
except ModuleNotFoundError as error:
    raise SystemExit(
        f"coop is built against the installed torch, but this Python cannot import it ({error}): "
        "install torch first, then run `pip install --no-build-isolation -e .`."
    ) from None

VERSION = "0.1.0.dev0"
ROOT = Path(__file__).resolve().parent
DEBUG = os.environ.get("COOP_DEBUG") == "1"


@dataclass(frozen=True)
class Cuda:
    """Where the CUDA runtime's headers and library are."""

    include_dirs: list[str]
    library: str  # a file


def find_cuda() -> Cuda | None:
    """The runtime that torch itself uses, or that of a toolkit; None for a torch without CUDA.

    We have no kernels, so neither nvcc nor a toolkit is needed: torch's CUDA packages from PyPI
    have the headers and the library. They leave out `crt/`, which Triton, another of torch's
    packages, brings (and nvidia-cuda-crt has).
    """
    if torch.version.cuda is None:
        return None
    packages = Path(torch.__file__).resolve().parents[1]
    toolkits = [Path(home) for home in (cpp_extension.CUDA_HOME, "/usr/local/cuda") if home]
    include_dirs = [
        *sorted(packages.glob("nvidia/*/include")),
        packages / "triton/backends/nvidia/include",
        *(toolkit / "include" for toolkit in toolkits),
    ]
    library_dirs = [
        *sorted(packages.glob("nvidia/*/lib")),
        packages / "torch/lib",
        *(toolkit / lib for toolkit in toolkits for lib in ("lib64", "lib")),
    ]
    found = {
        header: next((d for d in include_dirs if (d / header).exists()), None)
        for header in ("cuda_runtime_api.h", "crt/host_defines.h")
    }
    major = torch.version.cuda.split(".")[0]
    library = next(
        (f for d in library_dirs for f in sorted(d.glob(f"libcudart.so.{major}*"))), None
    )
    missing = [name for name, place in found.items() if place is None]
    if library is None:
        missing.append(f"libcudart.so.{major}")
    if missing:
        print(
            f"coop: torch {torch.__version__} has CUDA, but {', '.join(missing)} cannot be found: "
            "this build is for the CPU only. To build for the GPU too: "
            f"pip install 'nvidia-cuda-runtime=={major}.*' 'nvidia-cuda-crt=={major}.*', "
            "then build again.",
            file=sys.stderr,
        )
        return None
    return Cuda(list(dict.fromkeys(str(d) for d in found.values())), str(library))


CUDA = find_cuda()


def files(*patterns: str) -> list[str]:
    """The matching files, relative to the root as setuptools wants them, in a stable order."""
    return sorted(str(path.relative_to(ROOT)) for glob in patterns for path in ROOT.glob(glob))


def extension() -> Extension:
    sources = ["csrc/core/**/*.cc", "csrc/adapter/**/*.cc", *(["csrc/cuda/*.cc"] if CUDA else [])]
    ext = cpp_extension.CppExtension(
        name="coop._C_debug" if DEBUG else "coop._C",
        sources=files(*sources),
        depends=files("csrc/**/*.h"),
        include_dirs=[str(ROOT / "csrc")],
        define_macros=[
            ("COOP_TORCH_VERSION", f'"{torch.__version__}"'),
            *([("COOP_CUDA", "1")] if CUDA else []),
            *([("COOP_DEBUG", "1")] if DEBUG else []),
        ],
    )
    # Warnings are errors in our sources where we build (the Makefile sets COOP_WERROR), not with a
    # user's compiler, and never in the headers of others. setuptools adds -I for
    # Python's anyway, which does no harm: a directory that -isystem names too stays a system one.
    own, *others = ext.include_dirs
    others.append(sysconfig.get_path("include"))
    if CUDA:
        others += CUDA.include_dirs
        ext.libraries += ["c10_cuda", "torch_cuda"]
        ext.extra_objects.append(CUDA.library)
    ext.include_dirs = [own]
    ext.extra_compile_args = [
        "-std=c++20",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        *(["-Werror"] if os.environ.get("COOP_WERROR") == "1" else []),
        *(["-O1", "-g1", "-D_GLIBCXX_ASSERTIONS"] if DEBUG else ["-O3", "-g0", *INLINING]),
        *(f"-isystem{directory}" for directory in others),
    ]
    if not DEBUG:
        ext.extra_link_args = ["-O3", *INLINING]
    return ext


# What the compiler sees as one file each: most of its time is for torch's headers, and those of
# Python's binding to them, which are the same everywhere. Two units of the adapter would take as
# long on two cores as one does on one. What is in no unit is compiled by itself: with csrc/cuda in
# one, names would clash that no build for the CPU sees.
UNITS = {"core": "csrc/core/**/*.cc", "adapter": "csrc/adapter/**/*.cc"}


def can_optimize_as_a_whole() -> bool:
    """Whether the compiler can link with -flto: not every GCC has all that takes."""
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text("int probe() { return 0; }\n")
        command = [*compiler.split(), "-flto=auto", "-shared", "-fPIC", str(source), "-o"]
        try:
            built = subprocess.run(
                [*command, str(source.with_suffix(".so"))], capture_output=True, check=False
            )
        except OSError:
            return False
    return built.returncode == 0


# GCC inlines less the larger a unit is: without this an operator takes 0.1 us longer.
INLINING = (
    []
    if "clang" in os.environ.get("CXX", "")
    else [
        *(["-flto=auto"] if can_optimize_as_a_whole() else []),
        *("--param", "inline-unit-growth=300", "--param", "large-unit-insns=200000"),
    ]
)


class BuildExtension(cpp_extension.BuildExtension):
    """torch's builder, with one directory of objects per variant: their flags differ."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if DEBUG:
            self.build_temp += "-debug"

    def build_extensions(self) -> None:
        print(
            f"coop: compiling against torch {torch.__version__}, since no wheel for it was taken: "
            "a few minutes",
            file=sys.stderr,
        )
        if os.environ.get("COOP_UNITY") != "0":
            for ext in self.extensions:
                self.unite(ext)
        super().build_extensions()

    def unite(self, ext: Extension) -> None:
        """Compile units in place of their files."""
        folder = Path(self.build_temp, "units")
        folder.mkdir(parents=True, exist_ok=True)
        ext.depends += ext.sources
        for name, pattern in UNITS.items():
            members = files(pattern)
            unit = folder / f"{name}.cc"
            text = "".join(
                f'#include "{Path(m).relative_to("csrc").as_posix()}"\n' for m in members
            )
            # An unchanged unit keeps its time stamp, so that it is not compiled again.
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            ext.sources = [*(s for s in ext.sources if s not in members), str(unit)]


def metadata() -> dict[str, object]:
    """Version and dependencies.

    With `COOP_WHEEL=1` (`make wheels`) they name the torch that the wheel is for, as in
    0.1.0+torch2.13.cpu: the extension loads with no other.
    """
    if os.environ.get("COOP_WHEEL") != "1":
        return {"version": VERSION, "install_requires": ["torch>=2.11", "numpy", "rich"]}
    release = torch.__version__.partition("+")[0]
    cuda = "cpu" if CUDA is None else "cu" + str(torch.version.cuda).replace(".", "")
    return {
        "version": f"{VERSION}+torch{'.'.join(release.split('.')[:2])}.{cuda}",
        "install_requires": [f"torch=={release}", "numpy", "rich"],
    }


setup(ext_modules=[extension()], cmdclass={"build_ext": BuildExtension}, **metadata())
