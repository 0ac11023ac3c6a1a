"""The networks of the evaluation, as plain PyTorch modules behind one interface.

    workload = benchmarks.models.get("resnet50", "tiny")
    model = workload.make_model(seed=0)
    optimizer = workload.make_optimizer(model)
    loss = workload.loss(model, workload.make_batch(step=0))

`python -m benchmarks.models` measures the tiny sizes: step time, activations, parameters.
"""

from __future__ import annotations

from collections.abc import Callable

from . import bert, bilstm, densenet, gpt, inception, practice, resnet, spos, swin, treelstm, unet
from .workload import Batch, Size, Workload, count_parameters

__all__ = [
    "EIGHT",
    "PRACTICE",
    "Batch",
    "Size",
    "Workload",
    "all_names",
    "count_parameters",
    "get",
    "names",
]

# The networks of the paper's figures; the rest of `names()` are extras.
EIGHT = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "gpt3", "bilstm", "spos")

# Networks as people train them, most of them from libraries: what the checks on a GPU measure.
PRACTICE = ("tv_resnet50", "hf_gpt2", "hf_bert", "unet", "lstm")

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
_PRACTICE: dict[str, Callable[[Size, int | None], Workload]] = {
    "tv_resnet50": practice.tv_resnet50,
    "hf_gpt2": practice.hf_gpt2,
    "hf_gpt2_2.7b": practice.hf_gpt2_2_7b,
    "llama_7b": practice.llama_7b,
    "hf_bert": practice.hf_bert,
    "lstm": practice.lstm,
}


def names() -> tuple[str, ...]:
    """Our own networks: the paper's eight in `EIGHT` first, then the extras."""
    return tuple(_FACTORIES)


def all_names() -> tuple[str, ...]:
    """Also those of other libraries, which need not be installed."""
    return (*_FACTORIES, *_PRACTICE)


def get(name: str, size: Size, batch_size: int | None = None) -> Workload:
    """The workload of that name and size; `batch_size` replaces the size's own."""
    factories = _FACTORIES | _PRACTICE
    if name not in factories:
        raise ValueError(f"no network named {name!r}; there are: {', '.join(factories)}")
    if size not in ("tiny", "paper"):
        raise ValueError(f"no size named {size!r}; there are: tiny, paper")
    return factories[name](size, batch_size)
