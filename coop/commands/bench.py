"""`python -m coop bench`: the paper's evaluation, into one results file. Needs a checkout."""

import argparse
import importlib

from coop.commands._checkout import harness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness("bench", "sweep", parser).add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    exit_code: int = importlib.import_module("benchmarks.harness.sweep").run(args)
    return exit_code
