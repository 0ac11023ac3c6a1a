"""For mkdocs: what the search finds, and links to files of the repository that are no pages.

Pages that a program wrote are left out of the search: they have all words, and answer no question.

On a site they lead nowhere, so they become text with the file's name. That the file is there is
checked: a wrong link is a warning, which is an error where the site is built strictly.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOG = logging.getLogger("mkdocs.hooks.links")
GENERATED = ("results/", "coverage.md", "elsewhere.md", "evicted-arguments.md", "operators.md")
# For people who work on coop: after the others.
INSIDE = (
    "architecture.md",
    "decisions/",
    "extending.md",
    "methodology.md",
    "trace-format.md",
    "tried.md",
)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called for every page."""
    if page.file.src_uri.startswith(GENERATED):
        page.meta["search"] = {"exclude": True}
    elif page.file.src_uri.startswith(INSIDE):
        page.meta["search"] = {"boost": 0.2}
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def replaced(link: "re.Match[str]") -> str:
        text, target = link[1], link[2]
        if "://" in target:
            return link[0]
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT / "docs") and path.suffix in (".md", ".png", ".svg"):
            return link[0]
        if not path.exists():
            LOG.warning("%s: there is no file %s", page.file.src_uri, target)
        name = path.relative_to(ROOT).as_posix()
        return f"`{name}`" if text.strip("`").endswith(path.name) else f"{text} (`{name}`)"

    return LINK.sub(replaced, markdown)
