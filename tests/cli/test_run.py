"""`python -m coop run`: a script behaves as without it, except for the memory it takes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coop.machine import memory_bytes
from coop.sizes import format_bytes
from tests.adapter.slices import first
from tests.command_line import Coop, InProcess, environment

# An ordinary training script. It takes 8 MiB without a limit.
TRAIN = """\
import sys, torch
torch.manual_seed(0)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(128, 128), torch.nn.GELU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(512, 128)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""
Script = Callable[[str], Path]


def test_a_script_gives_the_same_bits_in_a_budget_and_five_lines_more(
    coop_command: Coop, script: Script, tmp_path: Path
) -> None:
    path = script(TRAIN)
    plain = subprocess.run(
        [sys.executable, path], env=environment(), capture_output=True, text=True, check=True
    )
    ran = coop_command("run", "--budget", "6MiB", "train.py")
    assert (ran.returncode, ran.stdout) == (0, plain.stdout)
    lines = ran.stderr.splitlines()
    patterns = (
        r"coop: needed  6\.\d\d MiB to run without evicting anything",
        r"coop: got     6\.00 MiB on the CPU; it held 5\.\d\d MiB at most",
        r"coop: cost    about [\d.]+% more compute \(estimated\): \d+ operators run again, "
        r"\d+ evictions of [\d.]+ MiB; 3 steps in [\d.]+ s",
        r"coop: next    --budget [\d.]+MiB evicts nothing; a budget between the two .*",
        r"coop: report  none \(--report FILE writes one\)",
    )
    assert len(lines) == 5, ran.stderr
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.py"]
    # What it says is next is so.
    followed = coop_command("run", *lines[3].split()[2:4], "train.py")
    assert (followed.returncode, followed.stdout) == (0, plain.stdout)
    assert "coop: cost    nothing: no value was evicted; 3 steps in " in followed.stderr


def test_arguments_name_and_path_are_the_scripts_own(
    coop_command: Coop, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    script(
        "import sys, beside, pickle\n"
        "class Thing: pass\n"
        "pickle.loads(pickle.dumps(Thing()))\n"
        "print(__name__, __file__, sys.argv, beside.word, sys.path[0])\n"
    )
    ran = coop_command("run", "--budget", "1MiB", "--quiet", "train.py", "--budget", "x", "-m", "y")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (
        f"__main__ train.py ['train.py', '--budget', 'x', '-m', 'y'] found {tmp_path}\n"
    )


@pytest.mark.slow
def test_a_module_runs_by_name(coop_command: Coop, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text("import sys, coop\nprint(sys.argv, coop.current_session())\n")
    ran = coop_command("run", "--budget", "1MiB", "--quiet", "-m", "package.tool", "--x")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"['{package}/tool.py', '--x'] <coop.session.Session object")


@pytest.mark.parametrize(
    ("ending", "code", "last_line"),
    [
        ("sys.exit('not today')", 1, "not today"),
        pytest.param("sys.exit(7)", 7, None, marks=pytest.mark.slow),
        pytest.param("sys.exit()", 0, None, marks=pytest.mark.slow),
    ],
)
def test_exit_codes_pass_through(
    coop_command: Coop, script: Script, ending: str, code: int, last_line: str | None
) -> None:
    script(f"import sys\n{ending}\n")
    ran = coop_command("run", "--budget", "1MiB", "--quiet", "train.py")
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr == (f"{last_line}\n" if last_line else "")


def test_an_error_shows_the_scripts_frames_only(coop_command: Coop, script: Script) -> None:
    script("def fail():\n    raise ValueError('mine')\n\nfail()\n")
    ran = coop_command("run", "--budget", "1MiB", "--quiet", "train.py")
    assert ran.returncode == 1
    lines = ran.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: mine"
    files = [line for line in lines if line.startswith("  File")]
    assert [re.sub(r".*train", "train", line) for line in files] == [
        'train.py", line 4, in <module>',
        'train.py", line 2, in fail',
    ]


def test_a_budget_that_is_too_small_is_explained_and_reported(
    coop_command: Coop, script: Script, tmp_path: Path
) -> None:
    script(TRAIN)
    ran = coop_command("run", "--budget", "1MiB", "--report", "out.html", "train.py")
    assert ran.returncode == 1
    assert "coop.errors.OutOfBudgetError: coop: aten::" in ran.stderr
    assert "The smallest budget that can pass this point: " in ran.stderr
    lines = ran.stderr.splitlines()
    (row,) = (row for row, line in enumerate(lines) if line.startswith("Try: "))
    assert re.fullmatch(r"Try: \(1\) a budget of \d+, or a little more, .*;", lines[row])
    assert re.fullmatch(r"     \(2\) a smaller batch or sequence.*;", lines[row + 1])
    assert re.fullmatch(r"     \(3\) smaller operators, .*;", lines[row + 2])
    assert re.fullmatch(r"     \(4\) fewer roots .*;", lines[row + 3])
    assert re.fullmatch(r"     \(5\) room for copies of roots .*\.", lines[row + 4])
    enough = lines[row].split()[5].rstrip(",")
    assert lines[row + 5].startswith(f"coop run: out of budget; try --budget {enough} (")
    assert ran.stderr.splitlines()[-1] == f"coop: report  {tmp_path}/out.html"
    report = (tmp_path / "out.html").read_text()
    assert "The smallest budget that can pass this point: " in report


NOT_A_SIZE = (
    "is not a size: write bytes as a number, or use one of the units "
    "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in '8GiB'"
)


@pytest.mark.parametrize(
    ("arguments", "variables", "line"),
    [
        (["--budget", "8XB", "train.py"], {}, f"argument --budget: '8XB' {NOT_A_SIZE}"),
        (["train.py"], {"COOP_BUDGET": "8XB"}, f"COOP_BUDGET: '8XB' {NOT_A_SIZE}"),
        (
            ["train.py"],
            {"COOP_BUDGET": "1MiB", "COOP_POLICY": "lru"},
            "COOP_POLICY: 'lru' is not a policy; choose coop, coop-paper, dtr or dte",
        ),
        (
            ["--budget", "1KiB", "train.py"],
            {},
            "a budget of 1024 bytes is too small: at least 64.00 KiB",
        ),
        (
            ["--budget", "1MiB", "missing.py"],
            {},
            "cannot open 'missing.py': No such file or directory",
        ),
        (["--budget", "1MiB", "-m", "missing.one"], {}, "there is no module named 'missing.one'"),
        (
            ["--budget", "1MiB", "--report", "no/where.html", "train.py"],
            {},
            "argument --report: cannot write 'FOLDER/no/where.html': "
            "there is no directory 'FOLDER/no'",
        ),
        (
            ["--budget", "1MiB", "--report", ".", "train.py"],
            {},
            "argument --report: cannot write 'FOLDER': it is a directory",
        ),
        (
            ["--budget", "1MiB", "--snapshot", "no/where.pickle", "train.py"],
            {},
            "argument --snapshot: cannot write 'FOLDER/no/where.pickle': "
            "there is no directory 'FOLDER/no'",
        ),
        (
            ["--budget", "1MiB"],
            {},
            "nothing to run: give a script, or -m and a module, after the options",
        ),
        (
            ["--budget", "1MiB", "."],
            {},
            "cannot run '.': there is no __main__.py in this directory",
        ),
        (["--budget", "-8MiB", "train.py"], {}, "argument --budget: expected one argument"),
        (
            ["--budget", "0", "train.py"],
            {},
            "argument --budget: a size must be at least 1 byte, not '0'",
        ),
        (
            ["--budget", "120%", "train.py"],
            {},
            "argument --budget: '120%' is not a share of the free memory: write '1%' to '100%'",
        ),
        (["train.py"], {"COOP_LIVE": "x"}, "COOP_LIVE: 'x' is neither yes nor no: write 1 or 0"),
        (
            ["--small-bytes", "x", "train.py"],
            {},
            f"argument --small-bytes: 'x' {NOT_A_SIZE}",
        ),
        (
            ["train.py"],
            {"COOP_QUIET_AFTER": "few"},
            "COOP_QUIET_AFTER: 'few' is not a whole number",
        ),
        (
            ["--budget", "1MiB", "--report", "/proc/r.html", "train.py"],
            {},
            "argument --report: cannot write '/proc/r.html': "
            "no file can be made in '/proc' (No such file or directory)",
        ),
        (
            ["--budget", "1000TiB", "--device", "cpu", "train.py"],
            {},
            f"a budget of 1000.00 TiB is more than the {format_bytes(memory_bytes())} of main "
            "memory that there are here: choose less",
        ),
        (
            ["--budget", "1MiB", "train.py"],
            {"COOP_DEVICE": "tpu"},
            "COOP_DEVICE: 'tpu' is not a device; choose cpu or cuda",
        ),
        pytest.param(
            ["--budget", "1MiB", "--device", "cuda", "train.py"],
            {},
            "there is no CUDA device here: `coop doctor` says more",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    in_process: InProcess,
    script: Script,
    tmp_path: Path,
    arguments: list[str],
    variables: dict[str, str],
    line: str,
) -> None:
    script("print('ran')\n")
    code, out, err = in_process("run", *arguments, **variables)
    assert (code, out) == (2, "")
    assert err == f"coop run: {line}\n".replace("FOLDER", str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.py"]


WAITS = TRAIN + "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("number", first(1, [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_it_as_it_ends_the_script(
    script: Script, tmp_path: Path, number: signal.Signals
) -> None:
    script(WAITS)
    process = subprocess.Popen(
        [sys.executable, "-m", "coop", "run", "--budget", "6MiB", "--report", "r.html", "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == -number
    files = {file.name for file in tmp_path.iterdir()}
    if number == signal.SIGINT:
        # Interrupted, but what was seen by then is told.
        lines = errors.splitlines()
        assert lines[0] == "coop run: interrupted"
        assert [line.split(" ")[0] for line in lines[1:]] == ["coop:"] * 5
        assert files == {"train.py", "r.html"}
        assert (tmp_path / "r.html").read_text().endswith("</html>\n")
    else:
        assert (errors, files) == ("", {"train.py"})


def test_workers_of_a_data_loader_are_outside_of_the_budget(
    coop_command: Coop, script: Script
) -> None:
    script(
        "import torch, coop\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return torch.full((4,), i), coop.current_session() is None\n"
        "if __name__ == '__main__':\n"
        "    for context in ('fork', 'spawn'):\n"
        "        loader = torch.utils.data.DataLoader(\n"
        "            Data(), num_workers=1, multiprocessing_context=context)\n"
        "        print([(int(x.sum()), bool(outside)) for x, outside in loader])\n"
    )
    ran = coop_command("run", "--budget", "1MiB", "--quiet", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[(0, True), (4, True), (8, True), (12, True)]\n" * 2


@pytest.mark.slow
def test_torchrun_starts_workers_that_take_the_budget_from_the_environment(
    script: Script, tmp_path: Path
) -> None:
    # One write per worker: their lines must not mix.
    script(
        TRAIN.replace("print(loss.item().hex())", "pass")
        + "import os, coop\n"
        + "budget_bytes = coop.current_session().stats().budget_bytes\n"
        + "os.write(1, f'{os.environ[\"RANK\"]} {budget_bytes}\\n'.encode())\n"
    )
    torchrun = ("torch.distributed.run", "--nproc-per-node=2", "--standalone")
    ran = subprocess.run(
        [sys.executable, "-m", *torchrun, "-m", "coop", "run", "--quiet", "train.py"],
        cwd=tmp_path,
        env=environment(COOP_BUDGET="6MiB"),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["0 6291456", "1 6291456"]


@pytest.mark.slow
def test_a_report_that_cannot_be_written_any_more_is_one_line(
    coop_command: Coop, script: Script, tmp_path: Path
) -> None:
    script("import shutil\nshutil.rmtree('out')\nraise SystemExit(3)\n")
    (tmp_path / "out").mkdir()
    options = ("--budget", "1MiB", "--quiet", "--report", "out/r.html")
    ran = coop_command("run", *options, "train.py")
    assert (ran.returncode, ran.stdout) == (3, "")
    place = f"{tmp_path}/out"
    assert (
        ran.stderr == f"coop run: cannot write '{place}/r.html': there is no directory '{place}'\n"
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.py"]


def test_unwritable_folders_are_found_before_the_run(
    coop_command: Coop, script: Script, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    script("print('ran')\n")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    ran = coop_command("run", "--budget", "1MiB", "--report", folder / "r.html", "train.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.endswith(f"no file can be made in '{folder}' (Permission denied)\n")
