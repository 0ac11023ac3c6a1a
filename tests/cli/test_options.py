"""One table of options: flags, environment variables, fields of coop.Config, and its page."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import coop
from coop import budget_size
from coop.options import CONFIG_OPTIONS, OPTIONS, Option, config_from_environment
from tests.command_line import ROOT, Coop, InProcess, environment

Script = Callable[[str], Path]

# For each field of coop.Config a value that is not its default, as text and as it is.
OTHERS = {
    "policy": ("dtr", "dtr"),
    "window": ("0", False),
    "partition": ("no", False),
    "inplace": ("false", False),
    "measure_costs": ("1", True),
    "events": ("yes", True),
    "paranoid": ("on", True),
    "small_bytes": ("1KiB", 1024),
    "quiet_after": ("7", 7),
    "background": ("1", True),
    "host": ("1MiB", 2**20),
    "host_dir": ("/scratch", "/scratch"),
}


def row(option: Option) -> str:
    """Of the table in docs/options.md."""
    field = f"`{option.name}`" if option.is_field else ""
    flags = f"`{option.flag}`"
    if option.is_switch and option.is_field:
        flags += f", `--no-{option.flag[2:]}`"
    default = f"`{option.default}`" if option.is_field else ""
    return f"| {flags} | `{option.variable}` | {field} | {default} | {option.help} |"


def test_the_page_has_the_table() -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `--")]
    assert rows == [row(option) for option in OPTIONS]


def test_every_field_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(OTHERS) == [field.name for field in dataclasses.fields(coop.Config)]
    for option in CONFIG_OPTIONS:
        text, value = OTHERS[option.name]
        monkeypatch.setenv(option.variable, text)
        expected = dataclasses.replace(coop.Config(), **{option.name: value})  # type: ignore[arg-type]
        assert config_from_environment() == expected
        monkeypatch.delenv(option.variable)
    assert config_from_environment() == coop.Config()


def test_a_budget_takes_size_and_configuration_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COOP_BUDGET", "1MiB")
    monkeypatch.setenv("COOP_POLICY", "dtr")
    with coop.budget() as session:
        assert session.stats().budget_bytes == 2**20
        assert session.config == coop.Config(policy="dtr")
    # What the program says comes first, and a configuration is taken as it is.
    with coop.budget("2MiB", policy="dte") as session:
        assert (session.stats().budget_bytes, session.config.policy) == (2 * 2**20, "dte")
    with coop.budget(config=coop.Config(small_bytes=0)) as session:
        assert session.config == coop.Config(small_bytes=0)
    monkeypatch.setenv("COOP_DEVICE", "tpu")
    with pytest.raises(ValueError, match="COOP_DEVICE: 'tpu' is not a device; choose cpu or cuda"):
        coop.budget().__enter__()


def test_a_run_takes_flags_and_hands_them_to_its_workers(
    in_process: InProcess, script: Script, tmp_path: Path
) -> None:
    script(
        "import os, coop\n"
        "print(coop.current_session().config)\n"
        "print({n: v for n, v in sorted(os.environ.items()) if n.startswith('COOP_') and v})\n"
    )
    options = ("--budget", "1MiB", "--no-window", "--small-bytes", "2KiB", "--quiet")
    code, out, err = in_process(
        "run", *options, "train.py", COOP_POLICY="dte", COOP_SNAPSHOT="s.pickle", COOP_DEBUG=""
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(coop.Config(policy="dte", window=False, small_bytes=2048))
    assert lines[1] == str(
        {
            "COOP_BUDGET": "1MiB",
            "COOP_DEVICE": "cpu",
            "COOP_POLICY": "dte",
            "COOP_QUIET": "1",
            "COOP_SMALL_BYTES": "2048",
            "COOP_WINDOW": "0",
        }
    )
    # A file to write is the run's own.
    assert (tmp_path / "s.pickle").exists()


def test_without_a_budget_a_run_says_which_one_it_has(coop_command: Coop, script: Script) -> None:
    script("import torch\ntorch.ones(3)\n")
    ran = coop_command("run", "train.py")
    first, *rest = ran.stderr.splitlines()
    assert first.startswith("coop: no budget given: it is ")
    assert first.endswith(
        "GiB, 80% of the main memory that is available (--budget or COOP_BUDGET gives another)"
    )
    assert [line.split()[1] for line in rest] == ["needed", "got", "cost", "next", "report"]


def test_without_a_budget_there_is_what_is_available(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coop.budget_size.available_bytes", lambda: 100 * 2**20)
    with coop.budget() as session:
        assert session.stats().budget_bytes == 80 * 2**20
    assert capsys.readouterr().err == (
        "coop: no budget given: it is 80.00 MiB, 80% of the main memory that is available "
        "(--budget or COOP_BUDGET gives another)\n"
    )
    monkeypatch.setenv("COOP_QUIET", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with coop.budget() as session:
        assert session.stats().budget_bytes == 20 * 2**20
    with coop.budget("30%") as session:
        assert session.stats().budget_bytes == 30 * 2**20
    assert capsys.readouterr().err == ""


def test_a_gpu_is_left_a_margin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gib = 2**30
    gpu = torch.device("cuda:1")
    monkeypatch.setattr(budget_size, "memory_of", lambda device: (70 * gib, 80 * gib))
    assert budget_size.budget_bytes(None, gpu) == 70 * gib - 80 * gib // 32
    assert budget_size.budget_bytes("50%", gpu) == 35 * gib
    budget_size.announce(int(67.5 * gib), gpu)
    assert capsys.readouterr().err == (
        "coop: no budget given: it is 67.50 GiB, the free memory of cuda:1 less 2.50 GiB "
        "(--budget or COOP_BUDGET gives another)\n"
    )
    monkeypatch.setattr(budget_size, "memory_of", lambda device: (6 * gib, 8 * gib))
    assert budget_size.budget_bytes(None, gpu) == 6 * gib - gib // 2
    with pytest.raises(ValueError, match=r"which has 6\.00 GiB of its 8\.00 GiB free"):
        budget_size.budget_bytes("7GiB", gpu)


RESIDENT = """\
import coop
def resident():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS"))
with coop.budget("1MiB"):
    pass
before = resident()
with coop.budget("80%") as session:
    assert session.stats().budget_bytes > 2**29
    print(resident() - before)
"""


def test_a_large_budget_takes_no_main_memory_before_it_is_used() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RESIDENT], env=environment(), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 4096  # KiB
