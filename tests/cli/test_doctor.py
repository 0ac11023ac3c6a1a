"""`coop doctor` checks what goes wrong in practice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import coop
from coop import releases
from coop.commands import _slice, doctor
from coop.commands import _surroundings as surroundings
from tests.adapter.test_machine import write

MIB = 2**20


@pytest.mark.parametrize(
    ("version", "older", "newer"),
    [
        ("2.10.1", True, False),
        ("2.11.0+cu130", False, False),
        ("2.15.0", False, False),
        ("2.16.0.dev20261101", False, True),
        ("3.0", False, True),
    ],
)
def test_which_releases_were_tested(version: str, older: bool, newer: bool) -> None:
    assert (releases.is_older(version), releases.is_newer(version)) == (older, newer)
    (finding,) = [*doctor._release(version), None][:1]
    assert (finding is None) == (not older and not newer)
    if finding is not None:
        assert finding.state == (doctor.BROKEN if older else doctor.WARNING)
        assert "2.11 to 2.15" in finding.text


def test_with_a_newer_torch_more_is_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(doctor._more_tests()) == []
    monkeypatch.setattr(releases, "NEWEST_TESTED", (2, 1))
    (finding,) = doctor._more_tests()
    assert (finding.state, finding.text) == (
        "ok",
        "6 small programs with everything evicted are bit-identical",
    )


def test_what_goes_wrong_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def differs() -> list[torch.Tensor]:
        calls.append(1)
        return [torch.tensor(float(len(calls)))]

    def fails() -> list[torch.Tensor]:
        raise KeyError("gone")

    monkeypatch.setattr(releases, "NEWEST_TESTED", (2, 1))
    monkeypatch.setattr(_slice, "PROGRAMS", {"one": differs, "two": fails, "three": _slice._writes})
    (finding,) = doctor._more_tests()
    assert finding.state == "broken"
    assert finding.text == ("of 3 small programs these go wrong: one (other bits), two (KeyError)")
    assert "torch==2.1.*" in finding.fix


def test_a_newer_torch_is_warned_of() -> None:
    releases.warn_if_newer(torch.__version__)
    with pytest.warns(UserWarning, match=r"torch 9\.0\.0 is newer .* `python -m coop doctor`"):
        releases.warn_if_newer("9.0.0")


def test_the_slice_evicts() -> None:
    with coop.budget("64MiB", paranoid=True, small_bytes=0) as session:
        _slice._attention()
    assert session.stats().num_replays > 100


def test_a_container_and_its_shared_memory(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{64 * MIB}\n",
        "sys/fs/cgroup/memory.current": f"{16 * MIB}\n",
    }
    assert list(surroundings.look_at_container(write(tmp_path, files))) == [
        (
            "container",
            "ok",
            "main memory is limited to 64.00 MiB (control group), 48.00 MiB are left",
            "",
        )
    ]


def test_little_shared_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    blocks = {"f_frsize": 4096, "f_blocks": 64 * MIB // 4096}
    monkeypatch.setattr(os, "statvfs", lambda path: type("Status", (), blocks))
    (found,) = surroundings.look_at_container(tmp_path)
    assert found[:3] == (
        "shared memory",
        "warning",
        "64.00 MiB in /dev/shm: workers of a DataLoader may die of it",
    )
    blocks["f_blocks"] *= 100
    assert list(surroundings.look_at_container(tmp_path)) == []


def test_wsl_is_known_by_its_kernel(tmp_path: Path) -> None:
    kernel = "Linux version 5.15.167.4-microsoft-standard-WSL2 (gcc 11.2.0)"
    (found,) = surroundings.look_at_wsl(write(tmp_path, {"proc/version": kernel}))
    assert found[:2] == ("wsl", "warning")
    assert list(surroundings.look_at_wsl(write(tmp_path, {"proc/version": "Linux 6.1"}))) == []


def test_neighbours_on_a_gpu() -> None:
    apps = [f"{os.getpid()}, python, 900 MiB", "77, /usr/bin/game, 2000 MiB"]
    (found,) = surroundings.look_at_neighbours(1, 2000 * MIB, apps)
    assert found[0] == "cuda:1"
    assert found[2].startswith("others use 1.95 GiB of this GPU (77, /usr/bin/game, 2000 MiB): ")
    (found,) = surroundings.look_at_neighbours(0, 2000 * MIB, [])  # in a container
    assert found[2].startswith("others use 1.95 GiB of this GPU: ")
    assert list(surroundings.look_at_neighbours(0, 100 * MIB, apps)) == []


def test_a_part_of_a_gpu() -> None:
    assert len(list(surroundings.look_at_mig(0, "NVIDIA A100 MIG 1g.10gb", ""))) == 1
    assert len(list(surroundings.look_at_mig(0, "NVIDIA A100", "MIG-11-22"))) == 1
    assert list(surroundings.look_at_mig(0, "NVIDIA A100", "0")) == []


def test_the_limit_of_locked_memory_is_told() -> None:
    (found,) = surroundings.look_at_locked_memory()
    assert found[:2] == ("locked memory", "ok")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_memory_that_cannot_be_pinned_is_told() -> None:
    (found,) = surroundings.look_at_pinned_memory()
    assert found[:2] == ("pinned memory", "warning")
