"""The subcommands of `python -m coop`, one module each.

A module has `add_arguments(parser)` and `run(args)`, which returns the exit code: 0 for success, 1
for an answer of "no", 2 for input that is wrong, 130 after Ctrl-C. Its one line of help is in
coop.__main__.
"""
