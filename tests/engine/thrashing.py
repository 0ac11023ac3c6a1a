"""A packed LSTM in a budget in which it recomputes for minutes; run by test_slow_steps.py.

It prints a line when it is in the middle of that, and another one after it was interrupted.
"""

from __future__ import annotations

import sys
import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import coop


def make() -> tuple[nn.LSTM, Tensor]:
    torch.manual_seed(0)
    return nn.LSTM(64, 128, num_layers=2), torch.randn(200, 16, 64)


def backward(model: nn.LSTM, inputs: Tensor) -> None:
    packed = pack_padded_sequence(inputs, torch.arange(200, 40, -10))
    out, _ = model(packed)
    out.data.pow(2).mean().backward()


def main(budget_bytes: int) -> None:
    def show(message: Warning | str, *_: object) -> None:
        print(f"warned: {message}", flush=True)

    warnings.showwarning = show
    with coop.budget(budget_bytes, device="cpu") as session:
        model, inputs = make()
        kept = inputs.mul(2)
        try:
            backward(model, inputs)
        except KeyboardInterrupt:
            stats = session.stats()
            print(f"interrupted after {stats.num_replays} replays", flush=True)
        # All is as it was, and goes on.
        model.zero_grad()
        fresh, same = make()
        pairs = zip(model.parameters(), fresh.parameters(), strict=True)
        same_bits = [torch.equal(a, b) for a, b in pairs]
        print("whole:", all(same_bits), torch.equal(kept, same.mul(2)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
