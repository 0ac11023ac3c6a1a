"""The notebook of the examples, all its cells in order, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.command_line import ROOT


def test_the_notebook_runs_to_its_end(tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "examples" / "budget.ipynb").read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)  # nothing of a run is committed
    program = "\n".join("".join(cell["source"]) for cell in cells)
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("needed  ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["budget.html", "budget.json.gz"]
