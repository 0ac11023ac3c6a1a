"""`python -m coop COMMAND`; the commands are the modules of coop.commands."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

# Only the module of the command that runs is imported: `doctor` works where others cannot.
COMMANDS = {
    "demo": "train a small GPT plain and at half of its memory, and compare",
    "run": "run an unmodified script inside a budget",
    "watch": "say how a run goes that is already going",
    "simulate": "run a trace inside a budget, without memory",
    "plan": "say what budget a trace or a script needs, and what it costs there",
    "calibrate": "measure this machine, as a device to plan for",
    "bench": "measure networks inside budgets, under all policies",
    "plot": "draw the results of bench as figures",
    "doctor": "say what works here, what does not, and the command that fixes it",
}


class Parser(argparse.ArgumentParser):
    """Wrong input is answered by one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="coop", description="Train inside a memory budget.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {
        name: commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        for name, text in COMMANDS.items()
    }
    module = None
    try:
        if arguments and arguments[0] in COMMANDS:
            module = importlib.import_module(f"coop.commands.{arguments[0]}")
            module.add_arguments(parsers[arguments[0]])
        args = parser.parse_args(arguments)
        assert module is not None  # a command is required, and it comes first
        exit_code: int = module.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"coop {arguments[0]}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has seen enough (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
