"""Fine-tunes with LoRA: weights stay, small matrices beside them learn. Knows nothing of coop.

    python examples/finetune_lora.py
    coop run --budget 30MiB examples/finetune_lora.py
    coop run examples/finetune_lora.py --layers 32 --width 4096 --batch 4 --length 2048

The last line is for a GPU. With LoRA nearly all memory is activations: a budget helps most there.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Lora(nn.Module):
    """A linear layer that does not learn, and two thin ones that do."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        return self.layer(x) + self.up(self.down(x))


def add_lora(model: nn.Module) -> None:
    """Beside every linear layer of the feed-forward networks."""
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.requires_grad_(False)
            layer.linear1, layer.linear2 = Lora(layer.linear1), Lora(layer.linear2)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    for name, number in (("steps", 4), ("layers", 6), ("width", 96), ("batch", 8), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        args.width, 4, 4 * args.width, batch_first=True, norm_first=True, activation=F.gelu
    )
    model = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
    add_lora(model)
    model.to(device)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    inputs = torch.randn(args.batch, args.length, args.width, device=device)
    for step in range(args.steps):
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item()}")


if __name__ == "__main__":
    main()
