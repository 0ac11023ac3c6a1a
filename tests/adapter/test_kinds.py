"""Tensors that are more than geometry over a storage: each is made again right, or held."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import coop
from coop._native import _C
from tests.adapter.kinds import KINDS, Kind
from tests.bits import bits

pytestmark = [pytest.mark.debug_build, pytest.mark.filterwarnings("ignore")]

# Nothing makes a tensor with these keys on a CPU.
NOT_MADE = {
    *("FPGA", "Vulkan", "Metal", "CustomRNGKeyId", "TESTING_ONLY_GenericWrapper"),
    *("Batched", "BatchedNestedTensor"),  # vmap as it was
    *("AutocastMTIA", "AutocastMAIA", "AutocastXPU", "AutocastIPU", "AutocastHPU", "AutocastXLA"),
    *("AutocastMPS", "AutocastCUDA", "AutocastPrivateUse1"),
    "Named",  # up to torch 2.12
}


def content(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, bytes(bits(tensor).tolist())


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 8, generator=generator), torch.randn(8, 8, generator=generator)


@pytest.mark.parametrize("paranoid", [False, True], ids=["evicted", "everything evicted"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_tensor_of_any_kind_computes_what_it_does_without_a_budget(
    kind: Kind, paranoid: bool
) -> None:
    expected = [content(result) for result in kind.run(*inputs(), between=lambda: None)]
    with coop.budget("8MiB", small_bytes=0, paranoid=paranoid) as session:
        x, y = (tensor * 1 for tensor in inputs())
        made = kind.run(x, y, between=session._engine.evict_all)
        got = [content(result) for result in made]
        assert session._engine.is_valid()
    assert got == expected


def keys_of(tensor: Tensor) -> set[str]:
    """The names of its keys, without those of backends."""
    listed = {row[0] for row in _C.tensor_kinds() if not row[1]}
    names = set()
    for name in re.findall(r"\w+", str(torch._C._dispatch_keys(tensor)))[1:]:
        if name not in listed:
            name = re.sub("(CPU|Meta)$", "", name)
            name = {"": "Dense", "Autograd": "AutogradFunctionality"}.get(name, name)
        names.add(name)
    return names


def tensors_of_all_kinds() -> list[Tensor]:
    found: list[Tensor] = []

    def look(tensor: Tensor) -> list[Tensor]:
        found.append(tensor)
        seen.update(keys_of(tensor))
        return [tensor.clone()]

    seen: set[str] = set()
    for kind in KINDS:
        if kind.inside is None:
            tensor = kind.make(*inputs())
            found.append(tensor)
            seen.update(keys_of(tensor))
        else:
            kind.inside(look, *inputs())
    tensors_of_all_kinds.keys = seen  # type: ignore[attr-defined]
    return found


def test_the_table_has_every_key_of_torch() -> None:
    missing = [key for key, _, listed, _, _ in _C.tensor_kinds() if not listed]
    assert missing == []


def test_a_tensor_of_every_key_and_every_layout_is_tested() -> None:
    layouts = {tensor.layout for tensor in tensors_of_all_kinds()}
    seen = tensors_of_all_kinds.keys  # type: ignore[attr-defined]
    modes = {row[0] for row in _C.tensor_kinds() if row[4].startswith("none: ")}
    listed = {row[0] for row in _C.tensor_kinds() if not row[1]}
    assert listed - modes - NOT_MADE == seen
    assert {value for value in vars(torch).values() if isinstance(value, torch.layout)} == layouts


def test_what_is_not_understood_is_held_and_said() -> None:
    with coop.budget("8MiB", small_bytes=0) as session:
        x = torch.randn(8, 8) * 1
        quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        result = quantized.dequantize()
        # How it was made is known, and a quantizer is not lost with the bytes.
        assert coop.evict(quantized)
        assert not coop.evict(result)
        assert "aten::dequantize.self" in session.kept_operators()
        assert content(quantized.dequantize()) == content(result)


def test_flipping_quantized_tensors_of_all_shapes() -> None:
    sizes = [(2, 3, 4), (0,), (1,), (2, 0, 3), (1, 3, 1)]
    with coop.budget("8MiB", small_bytes=0, paranoid=True):
        for dtype in (torch.quint8, torch.qint8, torch.qint32):
            for size in sizes:
                x = torch.arange(float(torch.Size(size).numel())).view(size)
                for t in (x, x.transpose(0, -1), x.unsqueeze(-1).expand(*size, 3)):
                    q = torch.quantize_per_tensor(t, 0.1, 5, dtype)
                    for dims in ((), (0,), (-1,), (0, -1)):
                        dims = dims if t.dim() > 1 else dims[:1]
                        twice = q.flip(dims).flip(dims)
                        assert torch.equal(twice.int_repr(), q.int_repr())
