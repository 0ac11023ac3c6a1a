"""Writes `docs/results`: a dated page of tables for every results file.

    python -m benchmarks.harness.pages

A page has the date of the last run of its file; what is not measured with the harness (the
simulator's tables, profiles of devices) has no page, or one that is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness.results import Results
from benchmarks.harness.tables import markdown

__all__ = ["page", "page_path", "pages"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"


def pages() -> dict[Path, str]:
    """What the pages of all committed results are, by their paths."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        if json.loads(path.read_text())["format"] == "coop-bench":
            results = Results.read(path)
            found[page_path(results)] = page(results)
    return found


def page_path(results: Results) -> Path:
    """Where its page is."""
    return PAGES / f"{_date(results)}-{results.path.stem}.md"


def page(results: Results) -> str:
    """The settings, the commits and all tables of a results file."""
    header = results.header
    commits = sorted({run["commit"][:7] for run in header["runs"] if run.get("commit")})
    said = {
        "check": header["check"],
        **{key: value for key, value in header["settings"].items() if value is not None},
        "commits": ", ".join(commits) or "not known",
    }
    settings = "; ".join(f"{key} {value}" for key, value in said.items())
    source = f"benchmarks/results/{results.path.name}"
    return (
        f"# {results.path.stem}, {_date(results)}\n\n"
        f"Generated from [{source}](../../{source}) by `python -m benchmarks.harness.pages`; "
        f"[how it is measured](../methodology.md).\n\n{settings}.\n\n{markdown(results)}"
    )


def _date(results: Results) -> str:
    dates = [run["date"][:10] for run in results.header["runs"] if run.get("date")]
    return max(dates, default="undated")


def main() -> None:
    """Writes them."""
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
