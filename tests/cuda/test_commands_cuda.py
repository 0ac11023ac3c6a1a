"""The commands on a GPU: demo, run, doctor, and what they write."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.cuda_programs import ROOT, needs_gpu

pytestmark = needs_gpu

TRAIN = (ROOT / "tests/cuda/programs/ordinary_script.py").read_text()


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in a folder, with this coop."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_demo_trains_on_the_gpu_and_is_bit_identical(tmp_path: Path) -> None:
    ran = command(tmp_path, "-m", "coop", "demo", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    demo = json.loads(ran.stdout)
    assert demo["device"] == "cuda"
    plain, *others = demo["rows"]
    assert [row["name"] for row in others] == ["coop", "dtr", "dte"]
    assert plain["peak_bytes"] > 2**30
    for row in others:
        if row["fitted"]:
            assert row["identical"], row
            assert row["peak_bytes"] <= row["budget_bytes"] == plain["peak_bytes"] // 2
            assert row["num_evictions"] > 0
    assert others[0]["fitted"], others[0]
    report = (tmp_path / "coop-demo.html").read_text()
    assert "gpt.py:" in report  # lines of the program
    assert ", backward" in report  # also of what autograd's own thread asked for
    print({row["name"]: (row["step_seconds"], row["overhead"], row["fitted"]) for row in others})


def test_a_script_gives_the_same_bits_and_leaves_a_report_and_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    plain = command(tmp_path, "train.py")
    assert plain.returncode == 0, plain.stderr
    options = (
        "--budget",
        "768MiB",
        "--device",
        "cuda",
        "--report",
        "r.html",
        "--snapshot",
        "s.pickle",
    )
    ran = command(tmp_path, "-m", "coop", "run", *options, "train.py")
    assert (ran.returncode, ran.stdout) == (0, plain.stdout), ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("coop: ")]
    assert len(lines) == 5, ran.stderr
    assert lines[1].startswith("coop: got     768.00 MiB on cuda:0; it held ")
    assert " evictions of " in lines[2], lines
    assert "train.py:" in (tmp_path / "r.html").read_text()
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert snapshot["segments"][0]["total_size"] == 768 * 2**20
    for tool, words in (("stats", "total_reserved: 768.0MiB"), ("trace", "= cudaMalloc(")):
        read = command(tmp_path, "-m", "torch.cuda._memory_viz", tool, "s.pickle")
        assert read.returncode == 0, read.stderr
        assert words in read.stdout
    plot = ("trace_plot", "s.pickle", "-o", "plot.html")
    assert command(tmp_path, "-m", "torch.cuda._memory_viz", *plot).returncode == 0


def test_without_a_device_the_gpu_is_meant(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.cuda.memory_reserved())\n")
    ran = command(tmp_path, "-m", "coop", "run", "--budget", "512MiB", "--quiet", "train.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{2**29}\n", "")


def test_a_budget_that_is_too_small_is_explained(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ran = command(tmp_path, "-m", "coop", "run", "--budget", "256MiB", "--quiet", "train.py")
    assert ran.returncode == 1
    assert "OutOfBudgetError: coop: " in ran.stderr
    last = ran.stderr.splitlines()[-1]
    found = re.match(r"coop run: out of budget; try --budget (\d+) \(", last)
    assert found, ran.stderr
    assert int(found[1]) > 256 * 2**20


def test_a_budget_larger_than_the_gpu_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    ran = command(tmp_path, "-m", "coop", "run", "--budget", "100TiB", "train.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("coop run: ")
    assert ran.stderr.count("\n") == 1, ran.stderr


def test_doctor_tries_the_gpu(tmp_path: Path) -> None:
    ran = command(tmp_path, "-m", "coop", "doctor", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)["findings"]
    # Another process on the GPU, if there is one, is a warning of the same name.
    assert "ok" in [finding["state"] for finding in found if finding["name"] == "cuda:0"]
    (budget,) = (finding["text"] for finding in found if finding["name"] == "budget, cuda")
    assert budget.startswith("a test run is bit-identical at ")


def test_hugging_face_s_trainer_trains_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra `hf`)")
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra `hf`)")
    program = (ROOT / "examples" / "hf_trainer.py").read_text()
    program = program.replace("use_cpu=True", "use_cpu=False")
    program = program.replace('budget(budget, device="cpu")', 'budget("512MiB", device="cuda")')
    (tmp_path / "train.py").write_text(program)
    ran = command(tmp_path, "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "coop/num_evictions" in ran.stdout + ran.stderr
