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


@pytest.mark.slow
def test_a_missing_debug_extension_names_the_command_that_builds_it(bare_checkout: Path) -> None:
    assert import_error(bare_checkout, debug=True) == (
        "ImportError: coop's native extension coop._C_debug is not built for this Python "
        f"({platform.python_version()}): {FIX.replace('pip', 'COOP_DEBUG=1 pip')}"
    )


@pytest.mark.slow
def test_an_extension_built_for_another_torch_names_both_versions(bare_checkout: Path) -> None:
    (bare_checkout / "coop" / "_C.py").write_text('torch_version = "1.13.0"\n')
    assert import_error(bare_checkout) == (
        "ImportError: coop's native extension coop._C was built for torch 1.13.0, "
        f"but torch {torch.__version__} is installed: {FIX}"
    )


@pytest.mark.slow
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


# Prints what `import coop` changed in torch, threading, concurrent.futures and os, and what it had
# called at the end of a step or at a fork.
WHAT_IT_CHANGES = """
import concurrent.futures, os, sys, threading
import torch, torch.distributed, torch.utils.dlpack
from torch.optim import optimizer

owners = [
    threading, threading.Thread, os, concurrent.futures.ThreadPoolExecutor,
    torch, torch.Tensor, torch._C.TensorBase, torch.UntypedStorage, torch._C.StorageBase,
    torch.TypedStorage, torch.random, torch.serialization, torch.utils.dlpack, torch._C,
    torch._C.PyTorchFileWriter, torch.autograd.profiler, torch._C.Future, torch.futures.Future,
    torch.nn.Module, torch.optim.Optimizer,
]
if torch.distributed.is_available():
    owners.append(torch._C._distributed_c10d.Reducer)
before = [dict(vars(owner)) for owner in owners]
hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
num_hooks = [len(hook) for hook in hooks]
at_fork = []
register = os.register_at_fork

def watched(**functions):
    at_fork.append(sys._getframe(1).f_globals["__name__"])
    register(**functions)

os.register_at_fork = watched
before[2]["register_at_fork"] = watched
"""
AND_REPORTS = """
changed = [
    f"{owner.__name__}.{name}"
    for owner, members in zip(owners, before)
    for name, member in members.items()
    if vars(owner).get(name) is not member
]
# Of a class, also what was inherited. A module gets new members when its parts are imported.
changed += [
    f"{owner.__name__}.{name}"
    for owner, members in zip(owners, before)
    for name in vars(owner)
    if isinstance(owner, type) and name not in members
]
print(sorted(changed))
print([len(hook) - number for hook, number in zip(hooks, num_hooks)])
print([name for name in at_fork if name.startswith("coop")])
"""


def changes_by(statements: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", WHAT_IT_CHANGES + statements + AND_REPORTS],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()


def test_importing_it_changes_nothing() -> None:
    assert changes_by("import coop") == ["[]", "[0, 0]", "[]"]


def test_the_first_budget_registers_hooks_and_leaves_no_patches_but_those_of_dlpack() -> None:
    budget = "with coop.budget('1MiB', device='cpu'): pass\n"
    expected = [
        "['Tensor.__dlpack__', 'torch.to_dlpack', 'torch.utils.dlpack.to_dlpack']",
        "[1, 1]",
        "['coop.runtime']",
    ]
    assert changes_by("import coop\n" + 3 * budget) == expected


def test_inside_a_budget_it_does_change_them() -> None:
    enter = "inside = coop.budget('1MiB', device='cpu')\ninside.__enter__()\n"
    changed, *_ = changes_by("import coop\n" + enter)
    for name in ("Tensor.numpy", "Tensor.data_ptr", "Thread.start", "torch.save", "Reducer."):
        assert f"'{name}" in changed, changed
