"""What `pip install -e .` leaves is found wherever Python starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIND = """
import site, sys
site.addsitedir(sys.argv[1])
import coop
print(coop.__file__)
"""


@pytest.mark.slow
def test_a_checkout_named_coop_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """Started beside it, with pip's way of installing and nothing compiled."""
    checkout = tmp_path / "coop"
    (checkout / "coop").mkdir(parents=True)
    (checkout / "coop/__init__.py").touch()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "setup.py").write_text("from setuptools import setup\nsetup(version='0')\n")
    prefix = tmp_path / "prefix"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--prefix", str(prefix), "--editable", str(checkout)]
    subprocess.run(pip, cwd=tmp_path, check=True)
    (packages,) = prefix.rglob("site-packages")
    ran = subprocess.run(
        [sys.executable, "-S", "-c", FIND, str(packages)],
        cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout.strip() == str(checkout / "coop/__init__.py"), ran.stderr
