"""What the documents say: links lead somewhere, and what is shown works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.command_line import ROOT

PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=str,
)
# [text](target#anchor), and images too
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    wrong = []
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def test_no_line_is_longer_than_anybody_reads() -> None:
    """Also those of tables: a cell is a word or a number, or a sentence."""
    written = [
        page for page in [*PAGES, ROOT / "CHANGELOG.md"] if "do not edit" not in page.read_text()
    ]
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in written
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > 400
    ]
    assert long == []


def test_there_are_twenty_questions() -> None:
    text = (ROOT / "docs" / "questions.md").read_text()
    rows = re.findall(
        r"^\| .* \| \[\S+#\d+\]\(https://\S+\) \| \[.*\]\(\S+\) \|$", text, re.MULTILINE
    )
    assert len(rows) >= 20


def test_a_loss_in_pieces_gives_the_same_gradients() -> None:
    page = (ROOT / "docs" / "howto" / "llm.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 40)
    inputs = torch.randn(16, 6, requires_grad=True)
    labels = torch.randint(40, (16,))
    F.cross_entropy(head(inputs * 2), labels).backward()
    assert inputs.grad is not None
    expected = [inputs.grad, head.weight.grad, head.bias.grad]
    inputs.grad = head.weight.grad = head.bias.grad = None
    exec(code, {"F": F, "hidden": inputs * 2, "labels": labels, "head": head})
    for found, wanted in zip(
        (inputs.grad, head.weight.grad, head.bias.grad), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted)


def screens(page: Path) -> float:
    """Of 45 lines that are 120 columns wide."""
    lines = page.read_text().splitlines()
    return sum(1 + max(0, len(line) - 1) // 120 for line in lines) / 45


def test_decisions_fit_on_a_screen_and_the_architecture_on_three() -> None:
    docs = ROOT / "docs"
    pages = sorted((docs / "decisions").glob("0*.md"))
    assert {page.name: screens(page) for page in pages if screens(page) > 1} == {}
    assert screens(docs / "architecture.md") <= 3
