"""Types each question of docs/questions.md into the search of the site, and says what comes first.

`make docs`, then `python -m tests.search_site`. It needs Chromium.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.report.chromium import Page

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (.*) \| \[\S+\]\(https://\S+\) \| \[.*\]\((\S+)\) \|$", re.MULTILINE)
# Pages, not counting the list of questions itself.
BEST = 3
TYPE = """(() => {
  const field = document.querySelector("input.md-search__input");
  field.focus();
  field.value = %s;
  field.dispatchEvent(new Event("keyup"));
})()"""
LINKS = """[...document.querySelectorAll(".md-search-result__list a.md-search-result__link")]
  .map(link => new URL(link.href).pathname.slice(1))"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of the folder's files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def find(page: Page, question: str) -> list[str]:
    """The pages that the search names, best first."""
    before = page.run(LINKS)
    page.run(TYPE % json.dumps(re.sub(r"[`?:,%.]", " ", question)))
    found = before
    for _ in range(100):
        found = page.run(LINKS)
        if found and found != before:
            break
        time.sleep(0.1)
    pages = [name.rstrip("/") for name in found]
    return [name for name in dict.fromkeys(pages) if name != "questions"]


def main() -> int:
    questions = ROW.findall((ROOT / "docs/questions.md").read_text())
    num_missing = 0
    with serve(ROOT / "build/site") as address, Page() as page:
        page.call("Page.navigate", url=address)
        page.wait("document.querySelector('input.md-search__input') !== null")
        page.wait("document.querySelector('.md-search-result__meta').innerText !== ''")
        for question, target in questions:
            wanted = target.split("#")[0].removesuffix(".md")
            best = find(page, question)[:BEST]
            num_missing += wanted not in best
            print("found  " if wanted in best else "MISSING", question, "->", ", ".join(best))
    print(f"{len(questions) - num_missing} of {len(questions)} questions find their page")
    return 1 if num_missing else 0


if __name__ == "__main__":
    sys.exit(main())
