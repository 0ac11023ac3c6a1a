"""Networks as people train them: torchvision's and transformers' own, and PyTorch's LSTM.

Those of libraries run in bf16 autocast with fused AdamW. A library is imported when its network is
built, not before: it need not be installed, and the process that starts the cells stays as small
as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .workload import Batch, Size, Workload, adamw, checkpoint_module, image_sampler


def tv_resnet50(size: Size, batch_size: int | None = None) -> Workload:
    """torchvision's ResNet-50 in channels_last."""
    if size == "paper":
        side, base_width, num_classes = 224, 64, 1000
        batch_size = batch_size or 256
    else:
        side, base_width, num_classes = 64, 8, 10
        batch_size = batch_size or 8
    return Workload(
        name="tv_resnet50",
        size=size,
        batch_size=batch_size,
        build=partial(_build_resnet50, base_width, num_classes),
        sample=partial(_sample_images, batch_size, side, num_classes),
        objective=_image_loss,
        optimize=adamw,
        enable_checkpointing=_checkpoint_resnet,
        num_parameters=25_557_032 if size == "paper" else None,
        parameters_source="torchvision's published count",
    )


def _build_resnet50(base_width: int, num_classes: int) -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    model: nn.Module = ResNet(Bottleneck, [3, 4, 6, 3], num_classes, width_per_group=base_width)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _sample_images(
    batch_size: int, side: int, num_classes: int, generator: torch.Generator
) -> Batch:
    images, labels = image_sampler(batch_size, side, side, num_classes)(generator)
    return images.contiguous(memory_format=torch.channels_last), labels


def _image_loss(model: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    with torch.autocast(images.device.type, torch.bfloat16):
        return nn.functional.cross_entropy(model(images), labels)


def _checkpoint_resnet(model: nn.Module) -> None:
    for name in ("layer1", "layer2", "layer3", "layer4"):
        for block in getattr(model, name):
            checkpoint_module(block)


def hf_gpt2(size: Size, batch_size: int | None = None) -> Workload:
    """transformers' GPT-2 medium with dropout and SDPA."""
    return _gpt2("hf_gpt2", size, batch_size or (16 if size == "paper" else 2), 1024, 24, 16)


def hf_gpt2_2_7b(size: Size, batch_size: int | None = None) -> Workload:
    """The same network with 2.7 billion parameters."""
    return _gpt2("hf_gpt2_2.7b", size, batch_size or (4 if size == "paper" else 2), 2560, 32, 32)


def _gpt2(
    name: str, size: Size, batch_size: int, width: int, num_layers: int, num_heads: int
) -> Workload:
    length, vocabulary = (1024, 50257) if size == "paper" else (128, 512)
    if size == "tiny":
        width, num_heads = 64, 4
    config = {
        "n_embd": width,
        "n_layer": num_layers,
        "n_head": num_heads,
        "vocab_size": vocabulary,
        "n_positions": length,
        "use_cache": False,
    }
    return _language_model(name, size, (batch_size, length), vocabulary, "GPT2", "LMHead", config)


def llama_7b(size: Size, batch_size: int | None = None) -> Workload:
    """transformers' Llama with 7 billion parameters, all of it in bfloat16."""
    batch_size = batch_size or (1 if size == "paper" else 2)
    length, vocabulary = (2048, 32000) if size == "paper" else (128, 512)
    config: dict[str, Any] = {"vocab_size": vocabulary, "use_cache": False}
    if size == "tiny":
        config |= {"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 256}
        config |= {"num_hidden_layers": 4}
    workload = _language_model(
        "llama_7b", size, (batch_size, length), vocabulary, "Llama", "ForCausalLM", config
    )
    return replace(
        workload,
        build=partial(_build_in_bfloat16, workload.build),
        num_parameters=6_738_415_616 if size == "paper" else None,
        parameters_source="Llama 2's published count",
    )


def _build_in_bfloat16(build: Callable[[], nn.Module]) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return build()
    finally:
        torch.set_default_dtype(before)


def hf_bert(size: Size, batch_size: int | None = None) -> Workload:
    """transformers' BERT Large for masked language modelling."""
    batch_size = batch_size or (32 if size == "paper" else 2)
    length = 512 if size == "paper" else 128
    config = {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024}
    config |= {"intermediate_size": 4096}
    if size == "tiny":
        config |= {"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 256}
        config |= {"vocab_size": 512}
    # Of its 30522 words the last ones are never drawn.
    vocabulary = 30000 if size == "paper" else 512
    shape = (batch_size, length)
    return _language_model("hf_bert", size, shape, vocabulary, "Bert", "ForMaskedLM", config)


def _language_model(
    name: str,
    size: Size,
    shape: tuple[int, int],
    vocabulary: int,
    family: str,
    head: str,
    config: dict[str, Any],
) -> Workload:
    return Workload(
        name=name,
        size=size,
        batch_size=shape[0],
        build=partial(_build_transformer, family, head, config),
        sample=partial(_sample_words, vocabulary, shape),
        objective=_language_loss,
        optimize=adamw,
        enable_checkpointing=_checkpoint_transformer,
    )


def _build_transformer(family: str, head: str, config: dict[str, Any]) -> nn.Module:
    import transformers

    head = f"{head}Model" if head == "LMHead" else head
    options = getattr(transformers, f"{family}Config")(**config, attn_implementation="sdpa")
    model: nn.Module = getattr(transformers, f"{family}{head}")(options)
    return model


def _sample_words(vocabulary: int, shape: tuple[int, int], generator: torch.Generator) -> Batch:
    return (torch.randint(vocabulary, shape, generator=generator),)


def _language_loss(model: nn.Module, batch: Batch) -> Tensor:
    (words,) = batch
    with torch.autocast(words.device.type, torch.bfloat16):
        loss: Tensor = model(words, labels=words).loss
    return loss


def _checkpoint_transformer(model: nn.Module) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]


class LayeredLSTM(nn.Module):
    """Eight LSTM layers, each an operator of its own (of cuDNN on a GPU), with a tanh between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(width, width, batch_first=True) for _ in range(8)])
        self.head = nn.Linear(width, width // 4)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of every position."""
        for layer in self.layers:
            x = torch.tanh(layer(x)[0])
        scores: Tensor = self.head(x)
        return scores


def lstm(size: Size, batch_size: int | None = None) -> Workload:
    """Eight LSTM layers of 1024 over 256 positions, in float32."""
    width, length = (1024, 256) if size == "paper" else (32, 32)
    batch_size = batch_size or (128 if size == "paper" else 16)
    return Workload(
        name="lstm",
        size=size,
        batch_size=batch_size,
        build=partial(LayeredLSTM, width),
        sample=partial(_sample_sequences, (batch_size, length, width)),
        objective=_square_loss,
        optimize=adamw,
        block_types=(nn.LSTM,),
    )


def _sample_sequences(shape: tuple[int, ...], generator: torch.Generator) -> Batch:
    return (torch.randn(shape, generator=generator),)


def _square_loss(model: nn.Module, batch: Batch) -> Tensor:
    (sequences,) = batch
    loss: Tensor = model(sequences).square().mean()
    return loss
