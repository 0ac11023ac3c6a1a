"""A bidirectional LSTM, unrolled step by step (`bilstm`) or as one operator (`bilstm_fused`).

Both hold the same `nn.LSTM`, so weights and counts agree. Unrolled, each step is a handful of
operators whose outputs can be evicted one by one. Fused, a library (cuDNN, oneDNN) runs a whole
layer as one operator with one big reserve, and there is next to nothing left to choose from.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from .workload import Batch, Size, Workload, classification_loss

# The authors' scripts give input, hidden, sequence and batch; two layers is our choice.
NUM_LAYERS = 2


class BiLstm(nn.Module):
    """Layers of two opposite LSTMs; the last states of both ends are classified."""

    def __init__(self, num_inputs: int, hidden: int, num_classes: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.lstm = nn.LSTM(num_inputs, hidden, NUM_LAYERS, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, num_classes)

    def _scan(self, x: Tensor, suffix: str, reverse: bool) -> Tensor:
        """One direction of one layer, cell by cell: (batch, sequence, inputs) to hidden states."""
        w_input, w_hidden, b_input, b_hidden = (
            self.lstm.get_parameter(f"{kind}_{suffix}")
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        steps = list(x.unbind(1))
        if reverse:
            steps.reverse()
        h = c = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        states = []
        for step in steps:
            gates = F.linear(step, w_input, b_input) + F.linear(h, w_hidden, b_hidden)
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        if reverse:
            states.reverse()
        return torch.stack(states, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, inputs) to class scores."""
        if self.fused:
            x, _ = self.lstm(x)
        else:
            for layer in range(NUM_LAYERS):
                forth = self._scan(x, f"l{layer}", reverse=False)
                back = self._scan(x, f"l{layer}_reverse", reverse=True)
                x = torch.cat((forth, back), 2)
        hidden = self.lstm.hidden_size
        scores: Tensor = self.classifier(torch.cat((x[:, -1, :hidden], x[:, 0, hidden:]), 1))
        return scores


def _sample(
    batch_size: int, sequence: int, num_inputs: int, num_classes: int, generator: torch.Generator
) -> Batch:
    inputs = torch.randn(batch_size, sequence, num_inputs, generator=generator)
    return inputs, torch.randint(num_classes, (batch_size,), generator=generator)


def _bilstm(name: str, fused: bool, size: Size, batch_size: int | None) -> Workload:
    sequence, num_classes = 128, 10
    num_inputs, hidden, default_batch_size = (100, 256, 2048) if size == "paper" else (32, 32, 96)
    batch_size = batch_size or default_batch_size
    return Workload(
        name=name,
        size=size,
        batch_size=batch_size,
        build=partial(BiLstm, num_inputs, hidden, num_classes, fused),
        sample=partial(_sample, batch_size, sequence, num_inputs, num_classes),
        objective=classification_loss,
        optimize=partial(Adam, lr=1e-3),
        num_parameters=2_315_274 if size == "paper" else None,
        parameters_source="derived: 2 * 4 h (inputs + h + 2) a layer, the second layer reading 2 h "
        "inputs, and a classifier of (2 h + 1) * 10",
    )


def bilstm(size: Size, batch_size: int | None = None) -> Workload:
    """Unrolled; the paper's batch is 2048 sequences of 128 steps, input 100, hidden 256."""
    return _bilstm("bilstm", False, size, batch_size)


def bilstm_fused(size: Size, batch_size: int | None = None) -> Workload:
    """The same network through `nn.LSTM`."""
    return _bilstm("bilstm_fused", True, size, batch_size)
