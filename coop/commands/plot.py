"""`python -m coop plot`: draw the rows of a results file. Needs a checkout."""

import argparse
import importlib

from coop.commands._checkout import harness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness("plot", "plot", parser).add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    exit_code: int = importlib.import_module("benchmarks.harness.plot").run(args)
    return exit_code
