"""For mkdocs: links to files of the repository that are no pages.

On a site they lead nowhere, so they become text with the file's name. That the file is there is
checked: a wrong link is a warning, which is an error where the site is built strictly.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOG = logging.getLogger("mkdocs.hooks.links")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called for every page."""
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
