"""Builds the one native extension of coop against the torch that is installed.

`python setup.py build_ext --inplace` builds `coop._C`; with `COOP_DEBUG=1` in the environment it
builds `coop._C_debug` instead: the same sources with all invariant checks. Metadata is in
pyproject.toml.
"""

import os
import sysconfig
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

ROOT = Path(__file__).resolve().parent
DEBUG = os.environ.get("COOP_DEBUG") == "1"
CUDA = torch.version.cuda is not None and cpp_extension.CUDA_HOME is not None


def files(*patterns: str) -> list[str]:
    """The matching files, relative to the root as setuptools wants them, in a stable order."""
    return sorted(str(path.relative_to(ROOT)) for glob in patterns for path in ROOT.glob(glob))


def extension() -> Extension:
    make = cpp_extension.CUDAExtension if CUDA else cpp_extension.CppExtension
    sources = ["csrc/core/**/*.cc", "csrc/torch/*.cc", *(["csrc/cuda/*.cc"] if CUDA else [])]
    ext = make(
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
    # Warnings are errors in our sources, not in the headers of others. setuptools adds -I for
    # Python's anyway, which does no harm: a directory that -isystem names too stays a system one.
    own, *others = ext.include_dirs
    others.append(sysconfig.get_path("include"))
    ext.include_dirs = [own]
    ext.extra_compile_args = [
        "-std=c++20",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror",
        *(["-O1", "-g1", "-D_GLIBCXX_ASSERTIONS"] if DEBUG else ["-O3", "-g0"]),
        *(f"-isystem{directory}" for directory in others),
    ]
    return ext


class BuildExtension(cpp_extension.BuildExtension):
    """torch's builder, with one directory of objects per variant: their flags differ."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if DEBUG:
            self.build_temp += "-debug"


setup(ext_modules=[extension()], cmdclass={"build_ext": BuildExtension})
