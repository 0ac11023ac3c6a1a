"""Traces, snapshots and reports are data: nothing in them is ever run. See SECURITY.md."""

from __future__ import annotations

import ast
import dataclasses
import json
import pickletools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import coop
from coop.recording import Failure, Recording
from coop.report.html import SCRIPTS, render, save_report
from coop.report.snapshot import save_snapshot
from tests.command_line import ROOT
from tests.report.chromium import EXECUTABLE, Page
from tests.report.recordings import small_recording

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "\"'`--><!--<svg/onload=window.hacked=3>{{SCRIPT}}${window.hacked = 4}\\u003cb\u2028"
)


class Elements(HTMLParser):
    """Which elements a page has, with their attributes, and what the scripts hold."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.scripts: dict[str | None, str] = {}
        self._script: str | None = None
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        self._in_script = tag == "script"
        self._script = dict(attrs).get("id")

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def elements_of(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser


@pytest.fixture(scope="module")
def recording() -> Recording:
    return small_recording()


@pytest.fixture(scope="module")
def hostile(recording: Recording) -> Recording:
    """The same, with operators, reasons and messages that try to be markup."""
    return dataclasses.replace(
        recording,
        operator_names=[f"{name}{HOSTILE}" for name in recording.operator_names],
        keep_reasons=[f"{reason}{HOSTILE}" for reason in recording.keep_reasons],
        policy=HOSTILE,
        device=HOSTILE,
        failures=[Failure(HOSTILE, HOSTILE, HOSTILE, {})],
    )


def test_no_name_adds_an_element_to_a_report(recording: Recording, hostile: Recording) -> None:
    harmless = elements_of(render(recording, "title"))
    page = elements_of(render(hostile, HOSTILE))
    assert page.elements == harmless.elements
    assert page.scripts[None] == harmless.scripts[None]
    facts = json.loads(page.scripts["facts"])
    assert facts["title"] == facts["policy"] == facts["device"] == HOSTILE
    assert facts["operators"] == hostile.operator_names
    assert facts["failures"] == [HOSTILE]


def test_the_page_makes_text_and_never_markup_of_what_it_shows() -> None:
    script = "".join((ROOT / "coop" / "report" / name).read_text() for name in SCRIPTS)
    markup = "innerHTML outerHTML insertAdjacentHTML document.write createContextualFragment"
    for word in (*markup.split(), "eval(", "new Function", "fetch(", "XMLHttpRequest"):
        assert word not in script


@pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium: apt-get install chromium")
def test_a_browser_runs_nothing_of_a_hostile_report(hostile: Recording, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    save_report(hostile, path, HOSTILE)
    with Page() as page:
        page.open(path)
        assert page.run("document.getElementById('title').textContent") == HOSTILE
        assert page.run("typeof window.hacked") == "undefined"
        assert page.run("document.images.length") == 0
        assert page.errors == []
        assert page.requests == [path.as_uri()]


def test_a_title_that_is_no_text_is_written_all_the_same(
    recording: Recording, tmp_path: Path
) -> None:
    """A file's name may have any bytes; Python hands them on as halves of characters."""
    path = tmp_path / "report.html"
    save_report(recording, path, b"train\xff.py".decode("utf-8", "surrogateescape"))
    assert "train?.py" in path.read_text(encoding="utf-8")


def test_a_snapshot_is_plain_data(hostile: Recording, tmp_path: Path) -> None:
    """It has to be a pickle, for memory_viz; there is nothing in it that loading would call."""
    path = tmp_path / "snapshot.pickle"
    save_snapshot(hostile, path)
    called = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert opcodes & called == set()


LOADERS = re.compile(
    r"^(pickle|cPickle|marshal|shelve|dill|joblib|cloudpickle)\.(load|loads|open|Unpickler)$"
    r"|^torch\.load$|^(numpy|np)\.load$|^yaml\.load$|^(eval|exec|compile|__import__)$"
)


def test_nothing_in_coop_loads_a_pickle_or_runs_text_but_the_script_that_coop_run_is_given() -> (
    None
):
    found = set()
    folder = Path(coop.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and LOADERS.search(ast.unparse(node.func)):
                found.add((str(path.relative_to(folder)), ast.unparse(node.func)))
    assert found == {("commands/run.py", "compile"), ("commands/run.py", "exec")}
