"""The command line's fixtures."""

from tests.command_line import coop_command, in_process, interruptible, one_thread, script

__all__ = ["coop_command", "in_process", "interruptible", "one_thread", "script"]
