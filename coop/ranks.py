"""Processes that train together: who this one is, and what all of them say at the end.

Launchers (torchrun, accelerate, Lightning, SLURM) tell a process who it is by its environment. The
ranks of one machine meet in a folder: each leaves there how it ended, and the last one that ends
sums up for all. There is no waiting: who ends first does not know about the others. Who fails says
so there first, and the others, who may be waiting for it in a collective, end too.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coop.files import write_whole
from coop.sizes import format_bytes
from coop.stats import Stats

__all__ = ["Ending", "Rank", "current_rank", "summary", "write_index"]

_LOOK_S = 0.5
_GRACE_S = 5.0


@dataclass(frozen=True)
class Rank:
    """One of several processes."""

    rank: int  # of all
    local_rank: int  # of this machine's
    local_size: int
    run: str  # the same for all of one start, and no other

    @property
    def _folder(self) -> Path:
        return Path(tempfile.gettempdir()) / f"coop-{os.getuid()}-{self.run}"

    def _open(self) -> Path:
        """The folder, which nobody else may have made."""
        folder = self._folder
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise OSError(f"{folder} is not ours")
        return folder

    def fail(self, failure: str) -> None:
        """Tells the others."""
        with contextlib.suppress(OSError):
            write_whole(self._open() / f"failed-{self.rank}", failure.encode())

    def first_failure(self) -> str:
        """What another rank of this machine failed with; empty: none did."""
        with contextlib.suppress(OSError):
            others = (p for p in self._open().glob("failed-*") if p != self._mine)
            for path in sorted(others, key=lambda path: path.stat().st_mtime_ns):
                return f"rank {path.name.removeprefix('failed-')} failed: {path.read_text()}"
        return ""

    @property
    def _mine(self) -> Path:
        return self._folder / f"failed-{self.rank}"

    def watch(self) -> None:
        """Ends this process when another rank has failed: it would wait for that one for ever.

        It may find out by itself (gloo's connection is closed): there is some time for that.
        """
        threading.Thread(target=self._watch, name="coop ranks", daemon=True).start()

    def _watch(self) -> None:
        while not (failure := self.first_failure()):
            time.sleep(_LOOK_S)
        print(f"coop run: {failure}; rank {self.rank} ends", file=sys.stderr, flush=True)
        time.sleep(_GRACE_S)
        os._exit(1)

    def path_of(self, path: Path) -> Path:
        """report.html becomes report.rank2.html."""
        return path.with_name(f"{path.stem}.rank{self.rank}{path.suffix}")

    def end(self, ending: Ending) -> list[Ending] | None:
        """Leaves how this rank ended. The last one of this machine gets all; nobody else."""
        try:
            path = self._open() / f"{self.local_rank}.json"
            write_whole(path, json.dumps(asdict(ending)).encode())
            found = sorted(self._folder.glob("*.json"))
            if len(found) < self.local_size:
                return None
            # Two may be here at once: one of them takes the folder away.
            taken = self._folder.with_name(f"{self._folder.name}-{os.getpid()}")
            self._folder.rename(taken)
        except OSError:
            return None
        endings = []
        with contextlib.suppress(OSError, ValueError):
            for each in sorted(taken.glob("*.json")):
                endings.append(Ending(**json.loads(each.read_text())))
            for each in taken.iterdir():
                each.unlink()
            taken.rmdir()
        return sorted(endings, key=lambda each: each.rank)


@dataclass(frozen=True)
class Ending:
    """How one rank ended."""

    rank: int
    budget_bytes: int
    peak_bytes: int
    needed_bytes: int
    needed_is_estimate: bool
    num_steps: int
    num_evictions: int
    overhead: float
    seconds: float
    failure: str = ""
    report: str = ""

    @staticmethod
    def of(rank: int, stats: Stats, seconds: float, failure: str, report: str) -> Ending:
        return Ending(
            rank=rank,
            budget_bytes=stats.budget_bytes,
            peak_bytes=stats.peak_bytes,
            needed_bytes=stats.needed_bytes,
            needed_is_estimate=stats.needed_is_estimate,
            num_steps=stats.num_steps,
            num_evictions=stats.num_evictions,
            overhead=stats.overhead,
            seconds=seconds,
            failure=failure,
            report=report,
        )

    @property
    def _tightness(self) -> float:
        return self.needed_bytes / max(self.budget_bytes, 1)


def current_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """This process's, as its launcher says; None for one process alone."""
    get = environment.get
    # torchrun and what is built on it; then SLURM's own names.
    for rank, local_rank, local_size in (
        ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # accelerate and Lightning, on one machine
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ):
        values = [get(rank, get(local_rank, "")), get(local_rank, ""), get(local_size, "")]
        if all(value.isdecimal() for value in values) and int(values[2]) > 1:
            start = get("TORCHELASTIC_RUN_ID", "") + get("SLURM_JOB_ID", "")
            run = f"{start}-{get('MASTER_PORT', '')}-{get('TORCHELASTIC_RESTART_COUNT', '0')}"
            # Of one launcher: a run's name may come again.
            clean = "".join(c for c in run if c.isalnum() or c in "-_")[:80]
            return Rank(int(values[0]), int(values[1]), int(values[2]), f"{clean}-{os.getppid()}")
    return None


def summary(endings: list[Ending]) -> list[str]:
    """One for all: who was slowest, who had least room, who failed."""
    slowest = max(endings, key=lambda each: each.overhead)
    tightest = max(endings, key=lambda each: each._tightness)
    evictions = sum(each.num_evictions for each in endings)
    about = "about " if tightest.needed_is_estimate else ""
    lines = [
        f"{len(endings)} ranks, {max(each.seconds for each in endings):.1f} s, "
        f"{max(each.num_steps for each in endings)} steps, {evictions} evictions",
        f"most overhead: rank {slowest.rank}, {slowest.overhead - 1:.1%} (estimated)",
        f"tightest: rank {tightest.rank}, budget {format_bytes(tightest.budget_bytes)}, peak "
        f"{format_bytes(tightest.peak_bytes)}; nothing is evicted there from "
        f"{about}{format_bytes(tightest.needed_bytes)} on (--budget {tightest.needed_bytes})",
    ]
    lines += [f"rank {each.rank} failed: {each.failure}" for each in endings if each.failure]
    return lines


def write_index(path: Path, title: str, endings: list[Ending]) -> None:
    """A page that links the reports of all ranks."""
    rows = "".join(
        f"<tr><td><a href='{html.escape(each.report, quote=True)}'>rank {each.rank}</a></td>"
        f"<td>{format_bytes(each.peak_bytes)} of {format_bytes(each.budget_bytes)}</td>"
        f"<td>{each.num_evictions}</td><td>{each.overhead - 1:.1%}</td>"
        f"<td>{html.escape(each.failure)}</td></tr>"
        for each in endings
    )
    page = (
        "<!doctype html><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title>"
        "<style>body{font:15px system-ui;margin:2em}td,th{padding:.2em 1em;text-align:left}</style>"
        f"<h1>{html.escape(title)}</h1><table><tr><th></th><th>peak</th><th>evictions</th>"
        f"<th>overhead</th><th></th></tr>{rows}</table>"
    )
    write_whole(path, page.encode())
