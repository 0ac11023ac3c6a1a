"""No program meets an evicted tensor: NumPy, DLPack, addresses, lengths, profilers."""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import coop
from coop._native import _C
from tests.bits import bits

pytestmark = pytest.mark.debug_build


def product() -> Tensor:
    """256 KiB that can be recomputed."""
    x = torch.arange(65536, dtype=torch.float32).view(256, 256) / 65536
    return x @ x


def assert_same(expected: Tensor, actual: Any) -> None:
    actual = torch.from_numpy(np.array(actual)) if isinstance(actual, np.ndarray) else actual
    assert torch.equal(bits(expected), bits(actual))


SHARED: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "numpy by force": lambda t: t.requires_grad_().numpy(force=True),
    "asarray": np.asarray,
    "NumPy's DLPack": np.from_dlpack,
    "torch's DLPack": torch.from_dlpack,
    "a capsule": lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
}


@pytest.mark.parametrize("name", SHARED)
def test_who_shares_an_evicted_tensors_memory_keeps_it(name: str) -> None:
    plain = product()
    with coop.budget("2MiB"):
        t = product()
        assert coop.evict(t)
        shared = SHARED[name](t)
        assert not coop.evict(t)
        torch.zeros(2**18)  # everything else has to go
        assert_same(plain, shared)
        # It is one memory: what is written there is seen here.
        shared[0, 0] = 7
        assert float(t.detach()[0, 0]) == 7


COPIED: dict[str, Callable[[Tensor], Any]] = {
    "numpy by force of a conjugate": lambda t: t.conj().numpy(force=True),
    "DLPack's copy": lambda t: torch.from_dlpack(t, copy=True),
    "an array's own type": lambda t: np.asarray(t, dtype=np.complex128),
}


@pytest.mark.parametrize("name", COPIED)
def test_a_copy_that_is_given_away_stays(name: str) -> None:
    """Its address was the arena's, and nobody knew that somebody had it."""
    plain = COPIED[name](product() * (1 + 1j))
    with coop.budget("4MiB") as session:
        t = product() * (1 + 1j)
        assert coop.evict(t)
        taken = COPIED[name](t)
        if name != "an array's own type":
            assert coop.evict(t)  # not held: nobody has its address
        session._engine.evict_all()
        torch.full((2**19,), 3.0)
        assert np.array_equal(np.asarray(plain), np.asarray(taken))


def test_what_raises_holds_nothing() -> None:
    with coop.budget("8MiB"):
        t = product().requires_grad_() * 2
        with pytest.raises(RuntimeError, match="requires grad"):
            t.numpy()
        with pytest.raises(BufferError):
            t.__dlpack__()
        assert coop.evict(t)


def test_predictions_are_gathered_and_read_later() -> None:
    def predict() -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 4096)
        predictions = []
        with torch.no_grad():
            for i in range(8):
                predictions.append(model(torch.full((64, 64), float(i))).detach().cpu())
        # One after the other: what NumPy may write stays for as long as it is there.
        return [predictions.pop(0).numpy().sum() for _ in range(8)]

    plain = predict()
    with coop.budget("6MiB") as session:
        inside = predict()
        assert session.stats().num_evictions > 0
    assert plain == inside


@pytest.mark.parametrize("method", ["data_ptr", "const_data_ptr"])
def test_an_address_is_of_memory_that_is_there(method: str) -> None:
    if not hasattr(Tensor, method):
        pytest.skip("newer than this torch")
    plain = product()
    with coop.budget("2MiB"):
        t = product()
        assert coop.evict(t)
        address = getattr(t, method)()
        torch.zeros(2**18)
        values = (ctypes.c_float * t.numel()).from_address(address)
        assert list(values) == plain.flatten().tolist()


def test_what_is_kept_says_who_took_the_address() -> None:
    code = compile("def take(t):\n    return t.data_ptr()", "generated.py", "exec")
    compiled: dict[str, Any] = {"__name__": "torch._inductor.runtime.generated"}
    exec(code, compiled)
    with coop.budget("8MiB", events=True) as session:
        one, two, three = product(), product(), product()
        one.data_ptr()
        compiled["take"](two)
        three.numpy()
        reasons = session._engine.keep_reasons()
    assert f"its address was taken by {__name__.partition('.')[0]}" in reasons
    assert "compiled code uses it" in reasons
    assert "its memory is shared with a NumPy array or the like" in reasons


def test_the_way_past_dlpack_is_closed_inside() -> None:
    name = "__dlpack_c_exchange_api__"
    before = torch.Tensor.__dict__.get(name)
    with coop.budget("8MiB"):
        assert not hasattr(torch.Tensor, name)
    assert torch.Tensor.__dict__.get(name) is before


# Above the dispatcher


def unpacked(held: bool) -> list[Tensor]:
    """2,000 steps: their lengths are more than what is small."""
    torch.manual_seed(0)
    x = torch.randn(2000, 3, 4)
    packed = pack_padded_sequence(x, torch.tensor([2000, 1500, 3]))
    model = torch.nn.LSTM(4, 8)
    sizes = packed.batch_sizes * 1
    if held:
        assert coop.evict(sizes)
    packed = PackedSequence(packed.data, sizes)
    out, _ = model(packed)
    if held:
        assert coop.evict(sizes)
    padded, lengths = pad_packed_sequence(out)
    return [padded.detach().clone(), lengths.clone()]


@pytest.mark.slow_on_debug
def test_a_packed_sequence_of_many_steps() -> None:
    plain = unpacked(held=False)
    with coop.budget("64MiB"):
        inside = unpacked(held=True)
        assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))


def test_lengths_stay_while_they_are_looked_at() -> None:
    """ctc_loss makes them of another type, takes their address, and allocates."""

    def loss() -> Tensor:
        torch.manual_seed(0)
        odds = torch.randn(20, 2048, 5).log_softmax(2)
        targets = torch.ones(2048, 4, dtype=torch.int64) * 2
        lengths = torch.full((2048,), 10, dtype=torch.int32) + 1
        return torch.nn.functional.ctc_loss(odds, targets, lengths + 5, lengths - 8)

    plain = loss()
    with coop.budget("64MiB", paranoid=True, small_bytes=0):
        assert torch.equal(plain, loss())


def test_operators_that_compute_above_the_dispatcher() -> None:
    """Without gradients `max_pool1d` reads its input itself, and writes its result."""

    def pooled(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            first = torch.nn.functional.max_pool1d(x, 2)
        return [first, torch.nn.functional.max_pool1d(first.t(), 3), *torch.max_pool1d(x, 4)[:1]]

    def quantized(x: Tensor) -> list[Tensor]:
        weight, _, *numbers = torch.fbgemm_linear_quantize_weight(x)
        half = torch.fbgemm_pack_gemm_matrix_fp16(x)
        product = torch.fbgemm_linear_fp16_weight_fp32_activation(x, half, None)
        return [weight, product, torch.tensor(numbers)]

    for program in (pooled, quantized):
        plain = program(product())
        with coop.budget("8MiB", paranoid=True, small_bytes=0) as session:
            x = product()
            assert coop.evict(x)
            inside = program(x)
            del x
            session._engine.evict_all()
            torch.full((2**19,), 3.0)
            inside = [t.clone() for t in inside]
        assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))


def test_a_sparse_matrix_is_checked() -> None:
    plain = torch.eye(4096)[:64] * 3
    with coop.budget("8MiB", small_bytes=0) as session:
        indices = torch.stack([torch.arange(64), torch.arange(64)])
        values = torch.ones(64) * 3
        session._engine.evict_all()
        sparse = torch.sparse_coo_tensor(indices, values, (64, 4096), check_invariants=True)
        assert torch.equal(sparse.to_dense(), plain)
        with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
            torch.sparse_coo_tensor(indices * 2, values, (64, 64), check_invariants=True)


def test_a_tensor_of_a_list_of_tensors() -> None:
    with coop.budget("8MiB", small_bytes=0) as session:
        losses = [torch.ones(3).sum() * i for i in range(4)]
        session._engine.evict_all()
        assert torch.tensor(losses).tolist() == [0, 3, 6, 9]


# Profilers


PROFILE = """
import torch, coop

def train():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(128, 64)).square().mean().backward()
        optimizer.step()

def profile():
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True) as p:
        train()
    return [(e.name, e.input_shapes) for e in p.events() if e.name != "[memory]"]

plain = profile()
with coop.budget("16MiB", device="cpu", paranoid=True, small_bytes=0) as session:
    inside = profile()
    assert session.stats().num_evictions > 100
assert sorted(map(str, plain)) == sorted(map(str, inside))
assert len(plain) > 100
"""


@pytest.mark.slow_on_debug
def test_a_profile_is_the_same_and_nothing_is_printed() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROFILE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "RecordFunction" not in result.stderr
    assert "evicted" not in result.stderr


# The error that remains


def test_the_error_names_shape_bytes_and_maker() -> None:
    with coop.budget("8MiB", small_bytes=0):
        state = torch.get_rng_state() + 0
        assert coop.evict(state)
        with pytest.raises(RuntimeError) as caught:
            torch.Generator().set_state(state)  # a type that nobody can change
        text = str(caught.value)
        assert f"{state.numel()} bytes of shape ({state.numel()})" in text
        assert "made by aten::add.Tensor" in text
        written = product()
        written.mul_(2)
        assert coop.evict(written)
        wanted = r"262144 bytes of shape \(256, 256\), made by aten::mul_"
        with pytest.raises(RuntimeError, match=wanted):
            unseen(lambda: written + 1)


def test_the_error_names_the_line_of_the_maker_where_lines_are_recorded() -> None:
    with coop.budget("8MiB") as session:
        session.events.record()
        made = product().mul(2)
        line = inspect.stack()[0].lineno - 1
        assert coop.evict(made)
        wanted = re.escape(f"made by aten::mul.Tensor in {__file__}:{line}.")
        with pytest.raises(RuntimeError, match=wanted):
            unseen(lambda: made + 1)


def unseen(function: Callable[[], Any]) -> Any:
    """As on a thread that the budget knows nothing of."""
    _C.set_thread_enabled(False)
    try:
        return function()
    finally:
        _C.set_thread_enabled(True)
