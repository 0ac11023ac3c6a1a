"""Operators that the dispatcher does not show us."""

from __future__ import annotations

import torch

from coop._native import _C


def _passed_over() -> list[str]:
    return [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "Fake")
    ]


def test_only_what_would_pass_through_is_passed_over() -> None:
    names = _passed_over()
    assert len(names) == 19, names
    for name in names:
        base, _, overload = name.partition(".")
        info = _C.operator_info(base, overload)
        assert info["passes_through"], name
        assert not any(info["writes"]), name


def test_what_roots_gradients_is_not() -> None:
    # AccumulateGrad calls these: Engine::intercept makes roots of their results.
    for name in ("detach", "clone", "add.Tensor", "add_.Tensor", "copy_"):
        assert f"aten::{name}" not in _passed_over()
