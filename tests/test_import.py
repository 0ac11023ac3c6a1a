"""Importing coop says in one sentence what is wrong with its extension, and what to do."""

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import coop
from tests.checkout import FORGET_INSTALLED, copy_without_extension

FIX = "run `pip install --no-build-isolation -e .` in the checkout."


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """A folder with the package in it, but without its extension."""
    copy_without_extension(tmp_path)
    return tmp_path


def import_error(checkout: Path, *, debug: bool = False) -> str:
    """What `import coop` ends with there: the last line of the traceback."""
    environment = {**os.environ, "COOP_DEBUG": "1" if debug else "0", "PYTHONPATH": str(checkout)}
    ran = subprocess.run(
        [sys.executable, "-c", FORGET_INSTALLED + "import coop"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1, ran.stderr
    return ran.stderr.splitlines()[-1]


def test_a_missing_extension_names_the_command_that_builds_it(bare_checkout: Path) -> None:
    assert import_error(bare_checkout) == (
        "ImportError: coop's native extension coop._C is not built for this Python "
        f"({platform.python_version()}): {FIX}"
    )


def test_a_missing_debug_extension_names_the_command_that_builds_it(bare_checkout: Path) -> None:
    assert import_error(bare_checkout, debug=True) == (
        "ImportError: coop's native extension coop._C_debug is not built for this Python "
        f"({platform.python_version()}): {FIX.replace('pip', 'COOP_DEBUG=1 pip')}"
    )


def test_an_extension_built_for_another_torch_names_both_versions(bare_checkout: Path) -> None:
    (bare_checkout / "coop" / "_C.py").write_text('torch_version = "1.13.0"\n')
    assert import_error(bare_checkout) == (
        "ImportError: coop's native extension coop._C was built for torch 1.13.0, "
        f"but torch {torch.__version__} is installed: {FIX}"
    )


def test_an_extension_with_undefined_symbols_names_the_torch_it_met(bare_checkout: Path) -> None:
    library = bare_checkout / "coop" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    source = bare_checkout / "module.c"
    source.write_text("extern int gone_from_torch; int *use = &gone_from_torch;\n")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    assert import_error(bare_checkout) == (
        "ImportError: coop's native extension coop._C does not load with the installed torch "
        f"{torch.__version__} ({library}: undefined symbol: gone_from_torch): {FIX}"
    )


@pytest.mark.debug_build
def test_the_environment_chooses_the_build() -> None:
    debug = os.environ.get("COOP_DEBUG") == "1"
    assert coop._native._C.__name__ == ("coop._C_debug" if debug else "coop._C")
    assert coop._native._C.torch_version == torch.__version__
