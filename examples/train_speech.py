"""Trains a recognizer of speech with CTC on made-up sounds. Knows nothing of coop.

    python examples/train_speech.py
    coop run --budget 8MiB examples/train_speech.py
    coop run examples/train_speech.py --layers 16 --width 512 --seconds 20 --batch 32   # for a GPU

Batches are of different lengths, as speech is: memory goes up and down with them.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LETTERS = 29  # the first stands for none


class Recognizer(nn.Module):
    """Convolutions to a fourth of the frames, then attention."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(80, width, 3, 2, 1)
        self.conv2 = nn.Conv1d(width, width, 3, 2, 1)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.letters = nn.Linear(width, LETTERS)

    def forward(self, sound: Tensor) -> Tensor:
        """Scores of letters by frame."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(sound))))
        return self.letters(self.layers(x.transpose(1, 2)))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    for name, number in (("steps", 4), ("layers", 4), ("width", 64), ("seconds", 2), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Recognizer(args.layers, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        frames = 100 * args.seconds - 40 * (step % 3)  # of 10 ms
        sound = torch.randn(args.batch, 80, frames, device=device)
        words = torch.randint(1, LETTERS, (args.batch, 8), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            scores = model(sound)
        spoken = F.log_softmax(scores.float(), -1).transpose(0, 1)
        lengths = torch.full((args.batch,), spoken.shape[0])
        loss = F.ctc_loss(spoken, words, lengths, torch.full((args.batch,), 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item()}")


if __name__ == "__main__":
    main()
