"""Reports of what happened in a budget, drawn from a `Recording`.

`timeline.py` turns the event log into blocks, curves and tables (numbers only); `html.py` puts them
into one HTML file with `page.html`, `page.css` and `page.*.js`; `still.py` draws a PNG;
`snapshot.py` writes what PyTorch's memory_viz reads.
"""

from coop.report.html import save_report
from coop.report.snapshot import save_snapshot
from coop.report.still import save_still
from coop.report.timeline import Timeline, make_timeline

__all__ = ["Timeline", "make_timeline", "save_report", "save_snapshot", "save_still"]
