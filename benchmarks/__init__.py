"""Measurements: the networks, the harness that measures them, and what was measured."""
