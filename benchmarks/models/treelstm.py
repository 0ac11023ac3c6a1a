"""Binary (constituency) Tree-LSTM (Tai et al. 2015), a new random tree every step."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from .workload import Batch, Size, Workload

NUM_CLASSES = 5


class Composer(nn.Module):
    """The composition function: a leaf from a word, and a node from its two children."""

    def __init__(self, num_inputs: int, hidden: int) -> None:
        super().__init__()
        self.leaf_cell = nn.Linear(num_inputs, hidden)
        self.leaf_output = nn.Linear(num_inputs, hidden)
        # Input gate, a forget gate per child, output gate and update, from each child.
        self.left = nn.Linear(hidden, 5 * hidden)
        self.right = nn.Linear(hidden, 5 * hidden)

    def leaf(self, word: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden state and cell of a word."""
        cell: Tensor = self.leaf_cell(word)
        return torch.sigmoid(self.leaf_output(word)) * torch.tanh(cell), cell

    def node(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Hidden state and cell of a phrase from those of its parts."""
        gates: Tensor = self.left(left[0]) + self.right(right[0])
        i, f_left, f_right, o, u = gates.chunk(5, 1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        cell = cell + torch.sigmoid(f_left) * left[1] + torch.sigmoid(f_right) * right[1]
        return torch.sigmoid(o) * torch.tanh(cell), cell


class TreeLstm(nn.Module):
    """Compose bottom-up and classify every node, as the sentiment treebank labels them.

    All samples of a batch share the tree, so a batch is one pass of wide operators; the graph
    itself changes with the tree of each step.
    """

    def __init__(self, num_inputs: int, hidden: int) -> None:
        super().__init__()
        self.composer = Composer(num_inputs, hidden)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(hidden, NUM_CLASSES)

    def forward(self, words: Tensor, children: Tensor) -> Tensor:
        """Scores (nodes, batch, classes) for words (leaves, batch, inputs) under a tree.

        Nodes are numbered leaves first; row i of `children`, on the host, names the parts of inner
        node i.
        """
        states = [self.composer.leaf(word) for word in words]
        for left, right in children.tolist():
            states.append(self.composer.node(states[left], states[right]))
        hidden = torch.stack([state[0] for state in states])
        scores: Tensor = self.classifier(self.dropout(hidden))
        return scores


def random_tree(num_leaves: int, generator: torch.Generator) -> Tensor:
    """(num_leaves - 1, 2) children of a random binary tree, made by merging random neighbours."""
    roots = list(range(num_leaves))
    children = []
    while len(roots) > 1:
        at = int(torch.randint(len(roots) - 1, (), generator=generator))
        children.append(roots[at : at + 2])
        roots[at : at + 2] = [num_leaves + len(children) - 1]
    return torch.tensor(children)


def _sample(batch_size: int, num_leaves: int, num_inputs: int, generator: torch.Generator) -> Batch:
    words = torch.randn(num_leaves, batch_size, num_inputs, generator=generator)
    children = random_tree(num_leaves, generator)
    shape = (2 * num_leaves - 1, batch_size)
    return words, children, torch.randint(NUM_CLASSES, shape, generator=generator)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    words, children, labels = batch
    scores: Tensor = model(words, children)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def treelstm(size: Size, batch_size: int | None = None) -> Workload:
    """Tree-LSTM over 100 words. An extra: the paper gives it no size, so this one is our choice."""
    if size == "paper":
        num_leaves, num_inputs, hidden = 100, 300, 1024
        batch_size = batch_size or 512
    else:
        num_leaves, num_inputs, hidden = 50, 48, 48
        batch_size = batch_size or 64
    return Workload(
        name="treelstm",
        size=size,
        batch_size=batch_size,
        build=partial(TreeLstm, num_inputs, hidden),
        sample=partial(_sample, batch_size, num_leaves, num_inputs),
        objective=_loss,
        optimize=partial(Adam, lr=1e-3),
        num_parameters=11_117_573 if size == "paper" else None,
        parameters_source="derived: 2 (inputs + 1) h for leaves, 10 (h + 1) h for nodes, 5 (h + 1) "
        "to classify. The composition at 300 inputs and h 150 has Tai et al.'s published 316,800",
        host_inputs=frozenset({1}),
    )
