"""The networks of the evaluation, as plain PyTorch modules behind one interface.

    workload = benchmarks.models.get("resnet50", "tiny")
    model = workload.make_model(seed=0)
    optimizer = workload.make_optimizer(model)
    loss = workload.loss(model, workload.make_batch(step=0))

`python -m benchmarks.models` measures the tiny sizes: step time, activations, parameters.
"""

from __future__ import annotations

from collections.abc import Callable

from . import bert, bilstm, densenet, gpt, inception, resnet, spos, swin, treelstm, unet
from .workload import Batch, Size, Workload, count_parameters

__all__ = ["EIGHT", "Batch", "Size", "Workload", "count_parameters", "get", "names"]

# The networks of the paper's figures; the rest of `names()` are extras.
EIGHT = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "gpt3", "bilstm", "spos")

_FACTORIES: dict[str, Callable[[Size, int | None], Workload]] = {
    "resnet50": resnet.resnet50,
    "inception_v3": inception.inception_v3,
    "unet": unet.unet,
    "swin": swin.swin,
    "bert_large": bert.bert_large,
    "gpt3": gpt.gpt3,
    "bilstm": bilstm.bilstm,
    "spos": spos.spos,
    "resnet152": resnet.resnet152,
    "densenet121": densenet.densenet121,
    "treelstm": treelstm.treelstm,
    "bilstm_fused": bilstm.bilstm_fused,
}


def names() -> tuple[str, ...]:
    """All networks: the paper's eight in `EIGHT` first, then the extras."""
    return tuple(_FACTORIES)


def get(name: str, size: Size, batch_size: int | None = None) -> Workload:
    """The workload of that name and size; `batch_size` replaces the size's own."""
    if name not in _FACTORIES:
        raise ValueError(f"no network named {name!r}; there are: {', '.join(names())}")
    if size not in ("tiny", "paper"):
        raise ValueError(f"no size named {size!r}; there are: tiny, paper")
    return _FACTORIES[name](size, batch_size)
