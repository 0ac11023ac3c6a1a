"""Ordinary training programs: every architecture, optimizer and loop that the engine must carry.

None of them knows of coop. Each trains for a few steps and returns every loss, gradient, parameter,
buffer and piece of optimizer state, and the state of the global generator.
"""

from . import programs_architectures, programs_training
from .outcome import Registry

PROGRAMS = Registry(programs_architectures.PROGRAMS | programs_training.PROGRAMS)
