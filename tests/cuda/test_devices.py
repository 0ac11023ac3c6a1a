"""Several GPUs, each with an arena of its own.

Where there is but one, it is shown to the programs as two (one_gpu_as_two.c): allocators, engines,
streams and autograd's threads are then those of two devices, and copies between them are real.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.cuda.cuda_programs import Program, needs_gpu, programs_of, run
from tests.cuda.programs import devices

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a machine with two GPUs."""
    if torch.cuda.device_count() > 1:
        return dict(os.environ)
    library = tmp_path_factory.mktemp("devices") / "one_gpu_as_two.so"
    source = Path(__file__).with_name("one_gpu_as_two.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@programs_of(devices)
def test_two_devices(program: Program, environment: dict[str, str]) -> None:
    run(program, environment=environment)


def test_copies_read_what_was_evicted_where_devices_are_no_peers(
    environment: dict[str, str],
) -> None:
    environment = {**environment, "NO_PEERS": "1"}
    run(devices.copies_between_devices_read_what_was_evicted, environment=environment)


def test_a_model_on_two_devices_trains_to_the_same_bits(environment: dict[str, str]) -> None:
    plain = run(devices.train_on_two, environment=environment)
    assert run(devices.train_on_two, "256MiB", environment=environment) == plain != ""
