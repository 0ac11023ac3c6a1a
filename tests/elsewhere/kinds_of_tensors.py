"""Training on tensors that are not plain: sparse, jagged, quantized, complex, a subclass."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.adapter.outcome import Outcome, Registry, collect

from .training import mlp, train

KINDS_OF_TENSORS = Registry()


@KINDS_OF_TENSORS
def sparse_embedding_gradients(seed: int) -> Outcome:
    torch.manual_seed(seed)
    words, bags = nn.Embedding(500, 64, sparse=True), nn.EmbeddingBag(500, 64, sparse=True)
    head = nn.Linear(64, 10)
    model = nn.ModuleList([words, bags, head])
    optimizers = [
        torch.optim.SparseAdam([words.weight, bags.weight], lr=1e-2),
        Adam(head.parameters(), lr=1e-2),
    ]
    losses = []
    for _ in range(3):
        tokens = torch.randint(500, (256, 16))
        features = words(tokens).tanh().mean(1) + bags(tokens.flatten(), torch.arange(0, 4096, 16))
        loss = F.cross_entropy(head(features), torch.randint(10, (256,)))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
    gradients = {
        f"{name} {what}": getattr(weight.grad.coalesce(), what)()
        for name, weight in (("words", words.weight), ("bags", bags.weight))
        for what in ("indices", "values")
    }
    for weight in (words.weight, bags.weight):
        weight.grad = None  # sparse; its parts are above
    return collect(losses, modules=[model], optimizers=optimizers, **gradients)


@KINDS_OF_TENSORS
def graph_network_over_a_sparse_matrix(seed: int) -> Outcome:
    """A sampled adjacency matrix, checked, normalized, as COO and as CSR."""
    torch.manual_seed(seed)
    weights = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 6)])
    optimizer = Adam(weights.parameters(), lr=1e-2)
    features, labels = torch.randn(512, 32), torch.randint(6, (512,))
    losses = []
    for _ in range(2):
        edges = torch.randint(512, (2, 3000))
        edges = torch.cat([edges, edges.flip(0), torch.arange(512).expand(2, -1)], dim=1)
        ones = torch.ones(edges.size(1))
        degree = torch.zeros(512).index_add_(0, edges[0], ones)
        values = (degree[edges[0]] * degree[edges[1]]).rsqrt()
        adjacency = torch.sparse_coo_tensor(
            edges, values, (512, 512), check_invariants=True
        ).coalesce()
        rows = F.relu(torch.sparse.mm(adjacency, weights[0](features)))
        rows = F.dropout(rows, 0.2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # CSR is in beta
            rows = F.relu(adjacency.to_sparse_csr() @ weights[1](rows))
        logits = adjacency @ weights[2](rows)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[weights], optimizers=[optimizer])


@KINDS_OF_TENSORS
def message_passing_by_scatter(seed: int) -> Outcome:
    """The same without sparse matrices: gather, softmax over neighbours, scatter."""
    torch.manual_seed(seed)
    project, score, head = nn.Linear(32, 32), nn.Linear(64, 1), nn.Linear(32, 5)
    model = nn.ModuleList([project, score, head])
    optimizer = Adam(model.parameters(), lr=1e-2)
    source, target = torch.randint(256, (2, 1500))
    losses = []
    for _ in range(3):
        rows = project(torch.randn(256, 32))
        pairs = F.leaky_relu(score(torch.cat([rows[source], rows[target]], dim=1))).squeeze(1)
        highest = torch.full((256,), -9.0).scatter_reduce(0, target, pairs.detach(), "amax")
        shares = (pairs - highest[target]).exp()
        total = torch.zeros(256).index_add(0, target, shares)
        messages = rows[source] * (shares / total[target]).unsqueeze(1)
        out = torch.zeros(256, 32).scatter_add_(0, target.unsqueeze(1).expand(-1, 32), messages)
        loss = F.cross_entropy(head(F.elu(out)), torch.randint(5, (256,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@KINDS_OF_TENSORS
def quantization_aware_training(seed: int) -> Outcome:
    """Fake quantization that learns its ranges, then real quantized tensors of the weights."""
    torch.manual_seed(seed)

    class Faked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(depth=2)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.fakes = nn.ModuleList(
                    quantization.FakeQuantize(
                        observer=quantization.MovingAverageMinMaxObserver,
                        quant_min=0,
                        quant_max=255,
                    )
                    for _ in range(3)
                )

        def forward(self, rows: Tensor) -> Tensor:
            rows = self.fakes[0](rows)
            rows = self.fakes[1](self.body[1](self.body[0](rows)))
            rows = self.fakes[2](self.body[3](self.body[2](rows)))
            return self.body[4](rows)

    model = Faked()
    outcome = train(model, model, rows=128)
    weight = model.body[0].weight.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # deprecated
        whole = torch.quantize_per_tensor(weight, 0.01, 0, torch.qint8)
        scales = weight.abs().amax(1) / 127
        rows = torch.quantize_per_channel(weight, scales, torch.zeros(64), 0, torch.qint8)
    tensors = dict(outcome.tensors)
    tensors |= {"integers": rows.int_repr(), "whole": whole.dequantize(), "rows": rows.dequantize()}
    return Outcome(tensors)


@KINDS_OF_TENSORS
def sequences_as_a_jagged_tensor(seed: int) -> Outcome:
    torch.manual_seed(seed)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(nn.Linear(32, 64), *hidden, nn.LayerNorm(64), nn.Linear(64, 32))
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        lengths = torch.randint(8, 40, (16,)).tolist()
        rows = torch.nested.nested_tensor(
            [torch.randn(length, 32) for length in lengths], layout=torch.jagged
        )
        hidden = model(rows)
        q = hidden.unflatten(-1, (2, 16)).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)
        loss = (attended + hidden).values().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], values=attended.detach().values())


@KINDS_OF_TENSORS
def fourier_layers_with_complex_weights(seed: int) -> Outcome:
    torch.manual_seed(seed)
    weight = nn.Parameter(torch.randn(8, 8, 12, dtype=torch.complex64) / 8)
    lift, drop = nn.Conv1d(2, 8, 1), nn.Conv1d(8, 1, 1)
    parameters = [weight, *lift.parameters(), *drop.parameters()]
    optimizer = Adam(parameters, lr=1e-3)
    losses = []
    for _ in range(3):
        rows = lift(torch.randn(16, 2, 64))
        for _ in range(2):
            modes = torch.fft.rfft(rows)
            mixed = torch.zeros_like(modes)
            mixed[:, :, :12] = torch.einsum("bix,iox->box", modes[:, :, :12], weight)
            rows = F.gelu(torch.fft.irfft(mixed, n=64) + rows)
        loss = drop(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = [p.grad for p in parameters if p.grad is not None]
    return collect(
        losses, optimizers=[optimizer], parameters=[p.detach() for p in parameters],
        gradients=gradients,
    )  # fmt: skip


class Labelled(Tensor):
    """A subclass that hands its label on, by `__torch_function__` alone."""

    label = "none"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Labelled):
            result.label = next((each.label for each in args if isinstance(each, Labelled)), "none")
        return result


@KINDS_OF_TENSORS
def a_tensor_subclass_of_the_users(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()

    def run(rows: Tensor) -> Tensor:
        labelled = rows.as_subclass(Labelled)
        labelled.label = "train"
        logits = model(labelled)
        assert logits.label == "train"
        return logits.as_subclass(Tensor)

    return train(model, run)
