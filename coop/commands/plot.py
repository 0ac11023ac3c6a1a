"""`python -m coop plot`: draw the results of `python -m coop bench`."""

import argparse
import sys
from pathlib import Path

from coop.bench.cells import BenchError
from coop.bench.results import Results
from coop.bench.tables import markdown
from coop.files import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="FILE.json", type=Path, help="made by `coop bench`")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="for the pictures; default: beside the results"
    )
    parser.add_argument(
        "--tables", metavar="FILE.md", type=Path, help="also write the tables, as Markdown"
    )


def run(args: argparse.Namespace) -> int:
    try:
        results = Results.read(args.results)
        for path in _draw(results, args.out or args.results.parent):
            print(path)
        if args.tables is not None:
            write_whole(args.tables, markdown(results).encode())
            print(args.tables)
    except (BenchError, OSError) as error:
        print(f"coop plot: {error}", file=sys.stderr)
        return 2
    return 0


def _draw(results: Results, folder: Path) -> list[Path]:
    try:
        from coop.bench import figures
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise BenchError("a picture needs matplotlib: pip install matplotlib") from None
    folder.mkdir(parents=True, exist_ok=True)
    paths = figures.draw(results, folder)
    if not paths:
        raise BenchError(f"{results.path} has no rows to draw yet")
    return paths
