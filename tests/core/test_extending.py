"""The examples of docs/extending.md are compiled and do what the page says."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc" / "core"
EXAMPLES = ROOT / "tests" / "core" / "native" / "extending.cc"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples with the core, which needs no torch: one file, since that compiles fastest."""
    folder = tmp_path_factory.mktemp("extending")
    sources = sorted(path for path in CORE.rglob("*.cc") if "simulate" not in path.parts)
    everything = folder / "everything.cc"
    everything.write_text("".join(f'#include "{path}"\n' for path in (*sources, EXAMPLES)))
    compiler = os.environ.get("CXX") or (sysconfig.get_config_var("CXX") or "c++").split()[0]
    program = folder / "examples"
    flags = ["-std=c++20", "-O0", "-DCOOP_DEBUG=1", f"-I{ROOT / 'csrc'}", f"-I{EXAMPLES.parent}"]
    subprocess.run([compiler, *flags, str(everything), "-o", str(program)], check=True)
    return program


def test_a_policy_a_way_back_and_a_device_of_ones_own_work(examples: Path) -> None:
    done = subprocess.run([examples], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
