"""Rule 10: a replay runs under the settings of its operator, and leaves today's as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import _C, Tensor

import coop

MIB = 2**20

pytestmark = pytest.mark.debug_build

# By name: how to ask torch for a setting, how to set it, and two of its values.
Setting = tuple[Callable[[], object], Callable[..., None], object, object]


def _flag(get: str, put: str) -> Setting:
    return getattr(_C, get), getattr(_C, put), False, True


def _precision(kind: str) -> Setting:
    owner = getattr(torch.backends.mkldnn, kind)
    return (
        lambda: owner.fp32_precision,
        lambda value: setattr(owner, "fp32_precision", value),
        "ieee",
        "bf16",
    )


def _flushes_denormal() -> bool:
    return float(torch.tensor(1e-38) * 0.01) == 0


SETTINGS: dict[str, Setting] = {
    "deterministic algorithms": (
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        lambda on: _C._set_deterministic_algorithms(on[0], warn_only=on[1]),
        (False, False),
        (True, True),
    ),
    "fill uninitialized memory": _flag(
        "_get_deterministic_fill_uninitialized_memory",
        "_set_deterministic_fill_uninitialized_memory",
    ),
    "cudnn": _flag("_get_cudnn_enabled", "_set_cudnn_enabled"),
    "cudnn benchmark": _flag("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    "cudnn deterministic": _flag("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    "mkldnn": _flag("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    "mkldnn deterministic": _flag("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    "nnpack": _flag("_get_nnpack_enabled", "_set_nnpack_enabled"),
    "float16 reductions": (
        _C._get_cublas_allow_fp16_reduced_precision_reduction,
        lambda allowed: _C._set_cublas_allow_fp16_reduced_precision_reduction(*allowed),
        (False, False),
        (False, True),
    ),
    "bfloat16 reductions": (
        _C._get_cublas_allow_bf16_reduced_precision_reduction,
        lambda allowed: _C._set_cublas_allow_bf16_reduced_precision_reduction(*allowed),
        (True, True),
        (False, False),
    ),
    "float16 accumulation": _flag(
        "_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"
    ),
    "multiprocessors left out": (
        _C._get_sm_carveout_experimental,
        _C._set_sm_carveout_experimental,
        None,
        7,
    ),
    "order of attentions": (
        lambda: tuple(_C._get_sdp_priority_order()),
        lambda order: _C._set_sdp_priority_order(list(order)),
        (1, 2, 0, 3, 4),
        (3, 0, 1, 4, 2),
    ),
    "flash attention": _flag("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "efficient attention": _flag("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    "attention as products": _flag("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "cudnn attention": _flag("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    "another attention": _flag("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    "attention's reductions": _flag(
        "_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction"
    ),
    "precision of matrices": _precision("matmul"),
    "precision of convolutions": _precision("conv"),
    "precision of RNNs": _precision("rnn"),
    "default dtype": (
        torch.get_default_dtype,
        torch.set_default_dtype,
        torch.float32,
        torch.float64,
    ),
    "denormals": (_flushes_denormal, torch.set_flush_denormal, False, True),
    "threads": (torch.get_num_threads, torch.set_num_threads, 1, 2),
}
seen: list[dict[str, object]] = []


@torch.library.custom_op("coop_settings::look", mutates_args=())
def look(x: Tensor) -> Tensor:
    """Notes all settings whenever it runs."""
    seen.append({name: get() for name, (get, *_) in SETTINGS.items()})
    return x + 1


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("turn", [0, 1])
def test_a_replay_sees_the_settings_of_its_operator(name: str, turn: int) -> None:
    get, put, *values = SETTINGS[name]
    then, now = values[turn], values[1 - turn]
    live = get()
    coop.allow_replay("coop_settings::look")
    seen.clear()
    try:
        with coop.budget(4 * MIB, small_bytes=0):
            x = torch.zeros(4096) + 1
            put(then)
            y = look(x)
            put(now)
            assert coop.evict(y)
            coop.materialize(y)
            assert get() == now
            assert [settings[name] for settings in seen] == [then, then]
            assert seen[0] == seen[1]
    finally:
        put(live)
