"""Budgets of tests are the CPU's also where there is a GPU. Tests of GPUs name them."""

from coop import config


def pytest_configure() -> None:
    # Programs that tests start name their device themselves.
    config.has_gpu = lambda: False
