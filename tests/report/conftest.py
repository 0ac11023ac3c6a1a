"""The command line's fixtures: reports are asked for there."""

from tests.command_line import coop_command, in_process, interruptible, one_thread, script

__all__ = ["coop_command", "in_process", "interruptible", "one_thread", "script"]
