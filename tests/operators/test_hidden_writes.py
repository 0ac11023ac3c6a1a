"""Rule 7: the engine knows of every write, those that an operator's schema hides too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coop._native import _C
from tests.bits import bits

pytest.importorskip("expecttest", reason="torch's databases import it")

from .cases import OPERATORS, cases
from .test_operators import SLICE, SPECIAL


class Writes(TorchDispatchMode):
    """Compares what every operator wrote with what the engine expects it to write."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()
        self.unexpected: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema  # type: ignore[attr-defined]
        info = _C.operator_info(schema.name, schema.overload_name)
        self.met.add(f"{schema.name}.{schema.overload_name}")
        values = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
        values |= kwargs
        before = []
        written_storages = set()
        for number, argument in enumerate(schema.arguments):
            for tensor in _strided(values.get(argument.name)):
                storage = tensor.untyped_storage()
                if info["writes"][number] or info["passes_through"]:
                    written_storages.add(storage._cdata)
                before.append((argument.name, tensor, _whole(tensor), storage.data_ptr()))
        result = func(*args, **kwargs)
        for name, tensor, content, address in before:
            storage = tensor.untyped_storage()
            if storage._cdata in written_storages or storage.data_ptr() != address:
                continue
            if not torch.equal(_whole(tensor), content):
                self.unexpected.add(f"{schema.name}.{schema.overload_name} wrote {name}")
        return result


def _strided(value: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.numel():
            yield leaf


def _whole(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return bits(torch.empty(0, dtype=torch.uint8).set_(storage))


def writes_of(operator: str, dtype: torch.dtype) -> Writes:
    with Writes() as writes:
        for case in cases(operator, dtype):
            try:
                case.run()
            except Exception:
                continue
    return writes


@pytest.mark.parametrize(
    "operator",
    [pytest.param(n, marks=[] if n in SPECIAL else [pytest.mark.slow]) for n in SLICE],
)
def test_an_operator_writes_only_what_the_engine_expects(operator: str) -> None:
    assert writes_of(operator, torch.float32).unexpected == set()


def test_the_check_itself_sees_a_hidden_write(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _C.operator_info
    monkeypatch.setattr(
        _C,
        "operator_info",
        lambda *name: {**honest(*name), "writes": [False] * 32, "passes_through": False},
    )
    assert any("add_" in entry for entry in writes_of("add", torch.float32).unexpected)


def test_statistics_of_batch_norm_are_in_the_table() -> None:
    assert "nn.functional.batch_norm" in OPERATORS
    info = _C.operator_info("aten::native_batch_norm", "")
    assert [number for number, written in enumerate(info["writes"]) if written] == [3, 4]
    assert info["training_argument"] == 5
