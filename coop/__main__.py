"""`python -m coop COMMAND`; the commands are the modules of coop.commands."""

import argparse
import sys
from collections.abc import Sequence

from coop.commands import simulate

COMMANDS = {"simulate": simulate}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="coop", description="Train inside a memory budget.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        module.add_arguments(
            commands.add_parser(name, help=module.HELP, description=module.HELP, allow_abbrev=False)
        )
    args = parser.parse_args(arguments)
    exit_code: int = COMMANDS[args.command].run(args)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
