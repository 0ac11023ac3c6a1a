"""Run an unmodified eager PyTorch training loop inside a hard memory budget."""

from coop import _native as _native
