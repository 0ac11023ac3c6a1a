"""Programs that train through packages of requirements-elsewhere.txt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.adapter.outcome import Outcome, Program, Registry, collect

from .packages import llama, quiet

HEAVY = Registry()
# What each imports; a program is skipped where that fails.
IMPORTS: dict[str, tuple[str, ...]] = {}


def needs(*modules: str) -> Any:
    def add(program: Program) -> Program:
        IMPORTS[program.__name__] = modules
        return HEAVY(quiet(program))

    return add


def steps(model: nn.Module, optimizer: Any, loss_of: Any, count: int = 3) -> list[Tensor]:
    losses = []
    for _ in range(count):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@needs("peft", "transformers")
def peft_lora_on_a_frozen_llama(seed: int) -> Outcome:
    """Trained, with adapters switched off for a reference, then merged into the weights."""
    import peft

    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]
    )
    model = peft.get_peft_model(llama(use_cache=False), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def loss() -> Tensor:
        tokens = torch.randint(101, (8, 48))
        logits = model(input_ids=tokens).logits
        with torch.no_grad(), model.disable_adapter():
            plain = model(input_ids=tokens).logits
        drift = F.kl_div(logits.log_softmax(-1), plain.log_softmax(-1), log_target=True)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()) + 0.1 * drift

    losses = steps(model, optimizer, loss)
    trained = collect(losses, modules=[model], optimizers=[optimizer])
    merged = model.merge_and_unload()
    logits = merged(input_ids=torch.randint(101, (4, 48))).logits.detach()
    return Outcome({**trained.tensors, "merged logits": logits})


@needs("diffusers")
def diffusers_unet_with_a_ddpm_schedule(seed: int) -> Outcome:
    """Noise is predicted, the weights are averaged, and a picture is sampled from them."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    torch.manual_seed(seed)
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )
    schedule = DDPMScheduler(num_train_timesteps=50)
    ema = EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        images = torch.randn(8, 1, 16, 16)
        noise, times = torch.randn_like(images), torch.randint(50, (8,))
        predicted = model(schedule.add_noise(images, noise, times), times).sample
        loss = F.mse_loss(predicted, noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
        losses.append(loss.detach())
    ema.copy_to(model.parameters())
    schedule.set_timesteps(3)
    picture = torch.randn(4, 1, 16, 16)
    with torch.no_grad():
        for time in schedule.timesteps:
            picture = schedule.step(model(picture, time).sample, time, picture).prev_sample
    return collect(losses, modules=[model], optimizers=[optimizer], picture=picture)


@needs("timm")
def timm_vision_transformer(seed: int) -> Outcome:
    """With its optimizer factory, its mixup and its drop path."""
    import numpy as np
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.manual_seed(seed)
    np.random.seed(seed)  # of the mixup
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4,
        num_classes=10, drop_path_rate=0.1,
    )  # fmt: skip
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, layer_decay=0.8)
    mixup, criterion = Mixup(mixup_alpha=0.2, num_classes=10), SoftTargetCrossEntropy()

    def loss() -> Tensor:
        images, labels = mixup(torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))
        return criterion(model(images), labels)

    return collect(steps(model, optimizer, loss), modules=[model], optimizers=[optimizer])


def network() -> nn.Sequential:
    """Weights large enough for states of 8 bits."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 64)
    )


@needs("torchao.optim")
def torchao_adamw_with_states_of_8_bits(seed: int) -> Outcome:
    from torchao.optim import AdamW8bit

    torch.manual_seed(seed)
    model = network()
    optimizer = AdamW8bit(model.parameters(), lr=1e-2, block_size=256)
    with torch.compiler.set_stance("force_eager"):  # a C++ compiler for each shape takes minutes
        losses = steps(model, optimizer, lambda: model(torch.randn(512, 64)).square().mean())
    states = [
        entry.dequantize() if type(entry) is not Tensor else entry
        for state in optimizer.state.values()
        for entry in (state["exp_avg"], state["exp_avg_sq"])
    ]
    return collect(losses, modules=[model], states=states)


@needs("bitsandbytes")
def bitsandbytes_adam_with_states_of_8_bits(seed: int) -> Outcome:
    from bitsandbytes.optim import AdamW8bit

    torch.manual_seed(seed)
    model = network()
    optimizer = AdamW8bit(model.parameters(), lr=1e-2, min_8bit_size=4096)
    losses = steps(model, optimizer, lambda: model(torch.randn(512, 64)).square().mean())
    return collect(losses, modules=[model], optimizers=[optimizer])


@needs("einops")
def einops_mixer(seed: int) -> Outcome:
    """Patches by `rearrange`, mixing by `einsum`, pooling by `reduce`, and its layers."""
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import Rearrange

    torch.manual_seed(seed)
    patch = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 32)
    )
    mix, head = nn.Parameter(torch.randn(16, 16) / 4), nn.Linear(32, 10)
    place = nn.Parameter(torch.zeros(1, 32))
    model = nn.ModuleList([patch, head, nn.ParameterList([mix, place])])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss() -> Tensor:
        rows = patch(torch.randn(32, 3, 16, 16)) + repeat(place, "1 d -> b n d", b=32, n=16)
        rows = rows + F.gelu(einsum(rows, mix, "b n d, n m -> b m d"))
        halves = rearrange(rows, "b n (two d) -> two b n d", two=2)
        rows = rearrange(halves.flip(0), "two b n d -> b n (two d)")
        return F.cross_entropy(head(reduce(rows, "b n d -> b d", "mean")), torch.arange(32) % 10)

    return collect(steps(model, optimizer, loss), modules=[model], optimizers=[optimizer])
