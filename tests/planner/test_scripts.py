"""`coop plan SCRIPT`: files stay as they are, and ordinary scripts are recorded."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import coop
from coop import confinement
from tests.command_line import Coop, InProcess, coop_command, in_process

__all__ = ["coop_command", "in_process"]  # fixtures

# What every way of saving is tried in: files of the user, and a step before and after.
BEGIN = """
import csv, io, json, os, pathlib, pickle, shutil, sqlite3, subprocess, sys, tempfile, zipfile
import numpy as np
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
loss = step()
"""
END = """
step()
raise AssertionError("not reached")
"""

WAYS = {
    "torch.save to a path": """
        torch.save(model.state_dict(), "ckpt.pt")
        assert torch.load("ckpt.pt")["weight"].shape == (64, 64)
        model.load_state_dict(torch.load("ckpt.pt"))
    """,
    "torch.save to a Path": 'torch.save({"o": optimizer.state_dict()}, pathlib.Path("ckpt.pt"))',
    "torch.save of a module": """
        torch.save(model, "new.pt")
        assert type(torch.load("new.pt", weights_only=False)) is torch.nn.Linear
    """,
    "torch.save to a file": """
        with open("ckpt.pt", "wb") as file:
            torch.save(model.state_dict(), file)
    """,
    "torch.save in the old format": """
        torch.save(model.state_dict(), "ckpt.pt", _use_new_zipfile_serialization=False)
    """,
    "torch.save to memory": """
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        assert list(torch.load(buffer)) == ["weight", "bias"]
        open("new.bin", "wb").write(buffer.getvalue())
    """,
    "a generator's state": """
        torch.save(torch.get_rng_state(), "rng.pt")
        torch.set_rng_state(torch.load("rng.pt"))
    """,
    "torch.jit.save": """
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), "ckpt.pt")
        torch.jit.script(torch.nn.ReLU()).save("new.pt")
    """,
    "torch's zip writer": """
        writer = torch._C.PyTorchFileWriter("ckpt.pt")
        writer.write_record("a", b"abc", 3)
        writer.write_end_of_file()
    """,
    "safetensors": """
        from safetensors import safe_open
        from safetensors.torch import load_file, save, save_file, save_model
        save_file(model.state_dict(), "ckpt.pt", metadata={"format": "pt"})
        assert load_file("ckpt.pt")["weight"].shape == (64, 64)
        assert safe_open("ckpt.pt", "pt").metadata() == {"format": "pt"}
        save_model(model, "new.safetensors")
        open("new.bin", "wb").write(save(model.state_dict()))
    """,
    "safetensors of NumPy": """
        from safetensors.numpy import save_file
        save_file({"a": np.ones(3)}, "ckpt.pt")
    """,
    "pickle": """
        with open("ckpt.pt", "wb") as file:
            pickle.dump(model, file)
        with open("ckpt.pt", "rb") as file:
            assert pickle.load(file).weight.shape == (64, 64)
    """,
    "NumPy": """
        np.save("new.npy", loss.detach().cpu().numpy())
        assert np.load("new.npy") == 1
        np.savez("ckpt.pt.npz", a=np.asarray(model.weight.detach()))
        np.ones(3).tofile("ckpt.pt")
        np.savetxt("log.csv", np.ones(3))
        np.memmap("new.map", mode="w+", shape=3)[:] = 1
    """,
    "a log": """
        with open("log.csv", "a", newline="") as file:
            csv.writer(file).writerow(["loss", f"{loss:.4f}"])
        assert open("log.csv").read() == "step,loss\\nloss,1.0000\\n"
        pathlib.Path("new.json").write_text(json.dumps({"a": 1}))
        with zipfile.ZipFile("new.zip", "w") as archive:
            archive.writestr("a", "b")
    """,
    "os.open": """
        descriptor = os.open("ckpt.pt", os.O_WRONLY | os.O_TRUNC)
        os.write(descriptor, b"gone")
        os.close(descriptor)
        os.truncate("log.csv", 1)
        assert (open("ckpt.pt").read(), open("log.csv").read()) == ("gone", "s")
    """,
    "removing": """
        os.remove("ckpt.pt")
        pathlib.Path("log.csv").unlink()
        shutil.rmtree("old")
        assert os.listdir() == ["train.py"]
        assert not os.path.exists("old/state.json")
    """,
    "renaming": """
        os.replace("ckpt.pt", "ckpt_prev.pt")
        os.rename("old", "older")
        assert sorted(os.listdir()) == ["ckpt_prev.pt", "log.csv", "older", "train.py"]
        assert open("older/state.json").read() == "{}"
        assert [path.name for path in pathlib.Path("older").glob("*.json")] == ["state.json"]
        with open("older/state.json", "r+") as file:
            file.write("[]")
        assert open("older/state.json").read() == "[]"
        shutil.move("ckpt_prev.pt", "older")
        assert [entry.is_file() for entry in os.scandir("older")] == [True, True]
    """,
    "writing whole, by a temporary file": """
        with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
            file.write(b"new")
        os.replace(file.name, "ckpt.pt")
        assert open("ckpt.pt").read() == "new"
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        shutil.move(name, "log.csv")
        assert open("log.csv").read() == ""
    """,
    "folders": """
        os.makedirs("out/checkpoint-1", exist_ok=True)
        os.makedirs("old", exist_ok=True)
        open("out/checkpoint-1/a", "w").close()
        shutil.copytree("old", "out/copy")
        shutil.copy("ckpt.pt", "out/copy")
        assert sorted(os.listdir("out/copy")) == ["ckpt.pt", "state.json"]
        os.chdir("out")
        open("b", "w").close()
        assert sorted(os.listdir()) == ["b", "checkpoint-1", "copy"]
        assert os.path.basename(os.getcwd()) == "out"
        open("../ckpt.pt", "w").close()
    """,
    "links": """
        os.symlink("ckpt.pt", "latest")
        os.symlink("old", "folder")
        assert open("latest").read() == "precious"
        with open("latest", "w") as file:
            file.write("gone")
        assert open("ckpt.pt").read() == "gone"
        open("folder/state.json", "w").close()
        os.link("log.csv", "hard")
        open("hard", "w").close()
        assert open("log.csv").read() == "step,loss\\n"
    """,
    "attributes": """
        os.chmod("ckpt.pt", 0)
        os.utime("ckpt.pt", (0, 0))
    """,
    "a database": """
        with sqlite3.connect("new.db") as database:
            database.execute("create table t (a)")
        assert os.path.exists("new.db")
    """,
    "at exit, and in a thread": """
        import atexit, threading
        atexit.register(lambda: open("ckpt.pt", "w").close())
        thread = threading.Thread(target=lambda: open("ckpt.pt", "w").close())
        thread.start()
        thread.join()
    """,
    "functions that somebody kept": """
        import posix, _io
        for function in (
            lambda: posix.unlink("ckpt.pt"),
            lambda: posix.rename("ckpt.pt", "new"),
            lambda: posix.open("ckpt.pt", os.O_WRONLY | os.O_TRUNC),
            lambda: posix.mkdir("new"),
            lambda: posix.truncate("ckpt.pt", 0),
            lambda: _io.FileIO("ckpt.pt", "w"),
        ):
            try:
                function()
            except PermissionError:
                pass
            else:
                raise AssertionError("not refused")
    """,
}


def dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    width = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[width:] for line in lines)


def snapshot(folder: Path) -> dict[str, tuple[int, float, str]]:
    """Mode, time and content of everything there."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.lstat().st_mode),
            path.lstat().st_mtime if path.is_file() else 0,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], Path]:
    """A folder with files that must not be touched, and this script."""

    def make(text: str) -> Path:
        (tmp_path / "ckpt.pt").write_text("precious")
        (tmp_path / "log.csv").write_text("step,loss\n")
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "state.json").write_text("{}")
        (tmp_path / "train.py").write_text(text)
        return tmp_path

    return make


PLAN = ("plan", "--json", "--policies", "coop", "--budgets", "1GiB")


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_saving_reaches_a_file(
    way: str, in_process: InProcess, files: Callable[[str], Path]
) -> None:
    folder = files(BEGIN + dedented(WAYS[way]) + END)
    before = snapshot(folder)
    code, out, err = in_process(*PLAN, "train.py")
    assert (code, "Traceback" in err) == (0, False), err
    assert snapshot(folder) == before
    assert json.loads(out)["num_steps"] == 2
    assert "was ended after 2 steps of its optimizer (--steps says how many)\n" in err


def test_what_was_not_done_is_told_in_one_line(
    in_process: InProcess, files: Callable[[str], Path]
) -> None:
    saved = 'torch.save(model, "a.pt")\nopen("log.csv", "a").close()\nshutil.rmtree("old")\n'
    files(BEGIN + saved + END)
    _, _, err = in_process(*PLAN, "train.py")
    assert err.splitlines() == [
        "coop plan: train.py changes no file: 2 files (a.pt, log.csv) not written; "
        "1 file (old) not removed",
        "coop plan: train.py was ended after 2 steps of its optimizer (--steps says how many)",
    ]


@pytest.mark.parametrize("has_landlock", [True, False])
def test_another_program_changes_nothing(
    has_landlock: bool,
    in_process: InProcess,
    files: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the kernel; where it cannot, no program is started."""
    if not has_landlock:
        monkeypatch.setattr(confinement, "restrict_writing", lambda _: False)
    text = """
        try:
            done = subprocess.run("rm -rf old; > ckpt.pt; > new", shell=True)
            print("ran", done.returncode != 0)
        except PermissionError as error:
            print("refused")
    """
    folder = files(BEGIN + dedented(text) + END)
    before = snapshot(folder)
    code, _, err = in_process(*PLAN, "train.py")
    assert code == 0
    assert snapshot(folder) == before
    landlock_works = has_landlock and "ran True\n" in err
    assert landlock_works or "refused\n" in err


@pytest.mark.parametrize("steps", ["1", "3", "0"])
def test_an_option_says_how_many_steps(
    steps: str, in_process: InProcess, files: Callable[[str], Path]
) -> None:
    files(BEGIN + "for _ in range(4):\n    step()\nprint('the end')\n")
    code, out, err = in_process(*PLAN, "--steps", steps, "train.py")
    assert code == 0
    assert json.loads(out)["num_steps"] == (int(steps) or 5)
    assert ("the end\n" in err) == (steps == "0")
    assert ("was ended after" in err) == (steps != "0")


def test_every_optimizer_makes_its_steps(
    in_process: InProcess, files: Callable[[str], Path]
) -> None:
    text = """
        critic = torch.nn.Linear(64, 64)
        other = torch.optim.SGD(critic.parameters())
        never = torch.optim.SGD(torch.nn.Linear(4, 4).parameters())
        del never
        while True:
            step()
            step()
            critic(torch.randn(8, 64)).sum().backward()
            other.step()
    """
    files(BEGIN + dedented(text))
    code, out, err = in_process(*PLAN, "train.py")
    assert code == 0
    assert json.loads(out)["num_steps"] == 7  # one, and twice two and one
    assert "was ended after 2 steps of each of its 2 optimizers" in err


def test_what_was_recorded_before_a_failure_is_used(
    in_process: InProcess, files: Callable[[str], Path]
) -> None:
    files(BEGIN + "big = torch.ones(2**28)\nraise OSError('no data')\n")
    code, out, err = in_process(*PLAN, "train.py")
    assert code == 0
    assert err.splitlines()[-2:] == [
        "OSError: no data",
        "coop plan: train.py failed after 1 step of its optimizer: the plan is of what came before",
    ]
    planned = json.loads(out)
    assert planned["num_steps"] == 1
    assert planned["peak_bytes"] < 2**20  # complete steps only


def test_a_script_that_dies_is_told(in_process: InProcess, files: Callable[[str], Path]) -> None:
    files("import os, signal, torch\ntorch.ones(3)\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert in_process(*PLAN, "train.py", "-x", "a b") == (
        1,
        "",
        "coop plan: train.py died of SIGSEGV; if it works with the hardware, record it there: "
        "python -m coop run --budget BYTES --trace FILE.jsonl train.py -x 'a b'\n",
    )


def test_a_module_is_planned(in_process: InProcess, files: Callable[[str], Path]) -> None:
    files(BEGIN + END)
    code, out, _ = in_process(*PLAN, "-m", "train")
    assert (code, json.loads(out)["num_steps"]) == (0, 2)


@pytest.mark.slow
def test_out_of_budget_recommends_a_plan_that_works(
    coop_command: Coop, files: Callable[[str], Path]
) -> None:
    text = """
        import sys, torch
        model = torch.nn.Linear(512, int(sys.argv[1]))
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.randn(512, 512)).square().sum().backward()
            optimizer.step()
    """
    files(dedented(text))
    failed = coop_command("run", "--budget", "2MiB", "--device", "cpu", "train.py", "1024")
    assert failed.returncode == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("coop run: out of")]
    command = line.split("`")[1]
    assert command == "python -m coop plan --device cpu train.py 1024"
    planned = coop_command(*command.split()[3:])
    assert planned.returncode == 0
    assert "was ended after 2 steps" in planned.stderr
    smallest = planned.stdout.splitlines()[-1].split("below ")[1].split(":")[0]
    passed = coop_command(
        "run", "--budget", smallest.replace(" ", ""), "--device", "cpu", "train.py", "1024"
    )
    assert "OutOfBudgetError" not in passed.stderr


def test_a_function_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_text("precious")

    def train() -> None:
        import torch

        model = torch.nn.Linear(64, 64)
        model(torch.randn(8, 64)).sum().backward()
        torch.save(model.state_dict(), tmp_path / "ckpt.pt")
        (tmp_path / "new").mkdir()
        assert torch.load(tmp_path / "ckpt.pt")["bias"].shape == (64,)

    before, functions = snapshot(tmp_path), (open, os.remove, os.getcwd)
    with pytest.warns(UserWarning, match=r"1 file \(.*ckpt\.pt\) not written"):
        coop.record_function(train)
    assert snapshot(tmp_path) == before
    assert functions == (open, os.remove, os.getcwd)
