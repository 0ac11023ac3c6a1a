"""Operators that do not come through the fallback."""

from __future__ import annotations

import pytest
import torch

from coop._native import _C


def _registered(file: str) -> list[str]:
    """The operators that have a kernel of their own on our key, by the file that registers it."""
    names = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "Fake"
        ):
            lines = torch._C._dispatch_dump(name).splitlines()
            if any(line.startswith("Fake") and file in line for line in lines):
                names.append(name)
    return names


def test_only_what_would_pass_through_is_passed_over() -> None:
    names = _registered("fallback.cc")
    assert len(names) == 19, names
    for name in names:
        base, _, overload = name.partition(".")
        info = _C.operator_info(base, overload)
        assert info["passes_through"], name
        assert not any(info["writes"]), name


def test_what_roots_gradients_is_not() -> None:
    # AccumulateGrad calls these: Engine::intercept makes roots of their results.
    for name in ("detach", "clone", "add.Tensor", "add_.Tensor", "copy_"):
        assert f"aten::{name}" not in _registered("fallback.cc")


@pytest.mark.slow
def test_all_that_are_taken_as_cpp_arguments_are_tested_with_everything_evicted() -> None:
    from tests.operators.test_hidden_writes import writes_of
    from tests.operators.test_operators import SPECIAL

    met: set[str] = set()
    for operator in SPECIAL:
        met |= {name.removesuffix(".") for name in writes_of(operator, torch.float32).met}
    typed = _registered("typed.cc")
    assert len(typed) == 56, typed
    # These run on a GPU (tests/cuda); relu_ and copy_ are all over tests/adapter, and so are fused
    # optimizers.
    elsewhere = (
        "cudnn",
        "flash_attention",
        "efficient_attention",
        "native_dropout",
        "relu_",
        "copy_",
        "_fused_adamw_",
    )
    assert [
        name for name in typed if name not in met and not any(k in name for k in elsewhere)
    ] == []
