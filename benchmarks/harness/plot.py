"""`python -m coop plot`: draw the rows of a results file, and write its tables."""

import argparse
import sys
from pathlib import Path

from benchmarks.harness.cells import BenchError
from benchmarks.harness.results import Results
from benchmarks.harness.tables import markdown
from coop.files import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `coop plot`."""
    parser.add_argument(
        "results",
        metavar="FILE.json",
        type=Path,
        help="made by `coop bench` or `python -m benchmarks`",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="for the pictures; default: beside the results"
    )
    parser.add_argument(
        "--tables", metavar="FILE.md", type=Path, help="also write the tables, as Markdown"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the paths of what it wrote."""
    try:
        results = Results.read(args.results)
        paths = _draw(results, args.out or args.results.parent)
        if not paths and args.tables is None:
            raise BenchError(f"{results.path} has no rows to draw; --tables writes its tables")
        for path in paths:
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
        from benchmarks.harness import figures
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise BenchError("a picture needs matplotlib: pip install matplotlib") from None
    folder.mkdir(parents=True, exist_ok=True)
    return figures.draw(results, folder)
