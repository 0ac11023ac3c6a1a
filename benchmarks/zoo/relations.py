"""Tables and graphs: recommendation, and networks over the edges of one large graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models.workload import Batch, Workload

from .own import own_workload


class Norm(nn.Module):
    """A linear map, a batch norm and a relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Rows in and out."""
        return F.relu(self.norm(self.linear(x)))


class Dlrm(nn.Module):
    """Tables of categories, a network for numbers, products of all pairs (Naumov et al. 2019)."""

    def __init__(self, num_tables: int, num_rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(num_rows, width) for _ in range(num_tables))
        self.bottom = nn.Sequential(Norm(13, 512), Norm(512, 256), Norm(256, width))
        pairs = num_tables * (num_tables + 1) // 2
        self.top = nn.Sequential(
            Norm(pairs + width, 1024), Norm(1024, 1024), Norm(1024, 512), Norm(512, 256)
        )
        self.head = nn.Linear(256, 1)
        rows, columns = torch.tril_indices(num_tables + 1, num_tables + 1, -1)
        self.register_buffer("pairs", rows * (num_tables + 1) + columns)

    def forward(self, numbers: Tensor, categories: Tensor, clicked: Tensor) -> Tensor:
        """The loss."""
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        rows = torch.stack([dense, *(row.to(dense.dtype) for row in looked_up)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)[:, self.pairs]
        scores = self.head(self.top(torch.cat([dense, products], 1)))[:, 0]
        return F.binary_cross_entropy_with_logits(scores.float(), clicked)


def _clicks(batch: int, num_tables: int, num_rows: int) -> Callable[[torch.Generator], Batch]:
    def sample(generator: torch.Generator) -> Batch:
        numbers = torch.randn(batch, 13, generator=generator)
        categories = torch.randint(num_rows, (batch, num_tables), generator=generator)
        return numbers, categories, torch.rand(batch, generator=generator)

    return sample


def dlrm() -> Workload:
    build = partial(Dlrm, 26, 40000, 64)
    return own_workload("dlrm", 65536, build, _clicks(65536, 26, 40000), Norm)


class Cross(nn.Module):
    """Products with the first row (Wang et al. 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """Rows in and out."""
        out: Tensor = first * self.linear(x) + x
        return out


class DeepCross(nn.Module):
    """DCN v2: one table for all categories, cross layers beside deep ones."""

    def __init__(self, num_tables: int, num_rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_rows, width)
        inside = num_tables * width + 13
        self.cross = nn.ModuleList(Cross(inside) for _ in range(6))
        self.deep = nn.Sequential(Norm(inside, 1024), *(Norm(1024, 1024) for _ in range(5)))
        self.head = nn.Linear(inside + 1024, 1)

    def forward(self, numbers: Tensor, categories: Tensor, clicked: Tensor) -> Tensor:
        """The loss."""
        first = torch.cat([self.table(categories).flatten(1), numbers], 1)
        x = first
        for layer in self.cross:
            x = layer(x, first)
        scores = self.head(torch.cat([x, self.deep(first)], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(scores.float(), clicked)


def dcn() -> Workload:
    build = partial(DeepCross, 26, 400000, 16)
    return own_workload("dcn", 65536, build, _clicks(65536, 26, 400000), Cross, Norm)


class GraphLayer(nn.Module):
    """The mean of the neighbours beside a node's own row (Hamilton et al. 2017), residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own, self.neighbours = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor, edges: Tensor, shares: Tensor) -> Tensor:
        """A row for each node in and out."""
        y = self.dropout(F.relu(self.norm(x)))
        sent = y[edges[0]] * shares[edges[1], None].to(y.dtype)
        mean = torch.zeros_like(y).index_add(0, edges[1], sent)
        out: Tensor = x + self.own(y) + self.neighbours(mean)
        return out


class GraphAttention(nn.Module):
    """Neighbours weighed by a softmax over the edges of a node (Velickovic et al. 2018)."""

    def __init__(self, width: int, num_heads: int = 8) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linear = nn.Linear(width, width)
        self.source = nn.Linear(width // num_heads, 1)
        self.target = nn.Linear(width // num_heads, 1)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """A row for each node in and out."""
        rows = self.linear(x).unflatten(1, (self.num_heads, -1))
        weights = self.source(rows)[edges[0], :, 0] + self.target(rows)[edges[1], :, 0]
        weights = F.leaky_relu(weights, 0.2).float()
        index = edges[1, :, None].expand_as(weights)
        most = torch.full((len(x), self.num_heads), -1e9, device=x.device)
        most = most.scatter_reduce(0, index, weights.detach(), "amax")
        weights = (weights - most[edges[1]]).exp()
        total = torch.zeros_like(most).index_add(0, edges[1], weights)
        weights = weights / (total[edges[1]] + 1e-9)
        sent = rows[edges[0]] * weights[..., None].to(rows.dtype)
        made = torch.zeros_like(rows).index_add(0, edges[1], sent).flatten(1)
        return x + F.elu(self.norm(made))


class GraphNetwork(nn.Module):
    """Scores for every node of one large graph."""

    def __init__(self, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.encode = nn.Linear(100, width)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 47)

    def forward(self, nodes: Tensor, edges: Tensor, shares: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        x = self.encode(nodes)
        for layer in self.layers:
            x = layer(x, edges, shares)
        return F.cross_entropy(self.head(x), labels)


def _graph(name: str, width: int, num_layers: int, layer: type[nn.Module]) -> Workload:
    num_nodes, num_edges = 100_000, 800_000

    def build() -> nn.Module:
        return GraphNetwork(width, [layer(width) for _ in range(num_layers)])

    def sample(generator: torch.Generator) -> Batch:
        nodes = torch.randn(num_nodes, 100, generator=generator)
        edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
        labels = torch.randint(47, (num_nodes,), generator=generator)
        return nodes, edges, torch.rand(num_nodes, generator=generator), labels

    return own_workload(name, 1, build, sample, layer)


def graph_sage() -> Workload:
    return _graph("graph_sage", 256, 28, GraphLayer)


def graph_attention() -> Workload:
    return _graph("graph_attention", 256, 12, GraphAttention)


TUNED = {"dlrm": (dlrm,), "graph-sage": (graph_sage,)}
JUDGED = {"dcn": (dcn,), "graph-attention": (graph_attention,)}
