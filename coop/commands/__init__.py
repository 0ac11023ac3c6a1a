"""The subcommands of `python -m coop`, one module each.

A module has `HELP` (one line), `add_arguments(parser)` and `run(args)`, which returns the exit
code: 0 for success, 1 for an answer of "no", 2 for input that is wrong.
"""
