"""Calls that are written out: above operators, torch's interface wants arguments that fit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune, rnn

Arguments = tuple[Any, ...]


def floats(*shape: int) -> Tensor:
    count = int(np.prod(shape))
    return ((torch.arange(count) * 37 % 101) / 101.0 + 0.01).view(shape)


def ints(*values: int) -> Tensor:
    return torch.tensor(values) + 0


def lengths(count: int = 6) -> Tensor:
    return torch.arange(count, 0, -1)


def indices() -> Tensor:
    return torch.stack([torch.arange(6), torch.arange(6).flip(0)])


def packed(x: Tensor, long: Tensor) -> rnn.PackedSequence:
    return rnn.pack_padded_sequence(x, long, batch_first=True)


def saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def network(kind: type[nn.Module]) -> Callable[..., Any]:
    def run(x: Tensor, long: Tensor) -> Any:
        torch.manual_seed(0)
        module = kind(4, 5, num_layers=2, batch_first=True)  # type: ignore[call-arg]
        out, state = module(packed(x, long))
        return rnn.pad_packed_sequence(out), state

    return run


def graph(adjacency: Tensor, values: Tensor, x: Tensor) -> Tensor:
    sparse = torch.sparse_coo_tensor(adjacency, values, (6, 6), check_invariants=True)
    return torch.sparse.mm(sparse.coalesce(), x)


def clipped(x: Tensor, gradient: Tensor) -> Any:
    parameter = nn.Parameter(x)
    parameter.grad = gradient
    norm = nn.utils.clip_grad_norm_([parameter], 0.5)
    nn.utils.clip_grad_value_([parameter], 0.1)
    return norm, parameter.grad


def rows(x: Tensor) -> list[Tensor]:
    return [x[i, : i + 1] + 0 for i in range(len(x))]


def profiled(x: Tensor, y: Tensor) -> Any:
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as profile:
        z = x @ y
    shapes = [event.input_shapes for event in profile.events() if event.name == "aten::mm"]
    return z, str(shapes)


def square() -> Arguments:
    return (floats(6, 6) + torch.eye(6) * 3,)


def distribution(kind: Any) -> tuple[Callable[[], Arguments], Callable[..., Any]]:
    def run(*parameters: Tensor) -> Any:
        made = kind(*parameters)
        return made.log_prob(made.mean.detach().round().clamp(0, 1)), made.mean, made.variance

    return lambda: (floats(6), floats(6) + 1), run


def one(function: Callable[..., Any]) -> tuple[Callable[[], Arguments], Callable[..., Any]]:
    return lambda: (floats(6, 6),), function


def whole(function: Callable[..., Any]) -> tuple[Callable[[], Arguments], Callable[..., Any]]:
    return lambda: (lengths(),), function


def two(function: Callable[..., Any]) -> tuple[Callable[[], Arguments], Callable[..., Any]]:
    return lambda: (floats(6, 6), floats(6, 6)), function


def sequence(function: Callable[..., Any]) -> tuple[Callable[[], Arguments], Callable[..., Any]]:
    return lambda: (floats(6, 6, 4), lengths()), function


WRITTEN: dict[str, tuple[Callable[[], Arguments], Callable[..., Any]]] = {
    # NumPy, DLPack, addresses, files
    "Tensor.numpy": one(lambda x: x.numpy().copy()),
    "Tensor.numpy(force=True)": one(lambda x: x.numpy(force=True).copy()),
    "Tensor.numpy(force=True), conjugate": (
        lambda: (floats(6, 6) * (1 + 1j),),
        lambda x: x.conj().numpy(force=True).copy(),
    ),
    "numpy.asarray": one(lambda x: np.asarray(x).copy()),
    "numpy.array of tensors": one(lambda x: np.array([x, x])),
    "numpy.asarray with a type": one(lambda x: np.asarray(x, dtype=np.float64)),
    "numpy.from_dlpack": one(lambda x: np.from_dlpack(x).copy()),
    "torch.from_dlpack": one(lambda x: torch.from_dlpack(x).clone()),
    "torch.from_dlpack(copy=True)": one(lambda x: torch.from_dlpack(x, copy=True)),
    "torch.utils.dlpack.to_dlpack": one(
        lambda x: torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).clone()
    ),
    "Tensor.data_ptr": one(lambda x: x.data_ptr() % 8),
    "UntypedStorage.data_ptr": one(lambda x: x.untyped_storage().data_ptr() % 8),
    "TypedStorage": one(lambda x: (x.storage()[3], x.storage().tolist())),
    "UntypedStorage": one(lambda x: (x.untyped_storage()[3], bytes(x.untyped_storage()))),
    "storage.clone": one(lambda x: x.untyped_storage().clone().tolist()),
    "pickle": one(lambda x: pickle.loads(pickle.dumps(x))),
    "copy": one(copy.copy),
    "deepcopy": one(copy.deepcopy),
    "torch.save": one(saved),
    "repr": one(lambda x: repr(x)),
    "format": one(lambda x: f"{x.sum():.3f} {x[0, 0]:.2e}"),
    "tolist": one(lambda x: x.tolist()),
    "item": one(lambda x: x.sum().item()),
    "iteration": one(lambda x: [float(row[0]) for row in x]),
    "contains": one(lambda x: 0.5 in x),
    "as an index": whole(lambda x: list(range(20))[int(x[0])] + range(20)[x[1]]),
    "as a size": whole(lambda x: torch.zeros(int(x[0]), x[1], dtype=torch.int64)),
    "as a slice": (lambda: (floats(6, 6), ints(2)[0]), lambda x, i: x[i:, :i]),
    "set_rng_state": (
        lambda: (torch.get_rng_state() + 0,),
        lambda state: (torch.set_rng_state(state), torch.rand(3)),
    ),
    "profiler": two(profiled),
    # constructors
    "torch.tensor": one(lambda x: torch.tensor(x)),
    "torch.tensor of a list": one(lambda x: torch.tensor([x[0, 0], x[1, 1]])),
    "torch.tensor of lists of tensors": one(lambda x: torch.tensor([list(x[0]), list(x[1])])),
    "torch.as_tensor": one(torch.as_tensor),
    "torch.as_tensor of a list": one(lambda x: torch.as_tensor([x[0, 0], x[1, 1]])),
    "torch.asarray": one(lambda x: torch.asarray(x, copy=True)),
    "torch.Tensor of a list": one(lambda x: torch.Tensor([x[0, 0], x[1, 1]])),
    "torch.FloatTensor of a list": one(lambda x: torch.FloatTensor([x[0, 0], x[1, 1]])),
    "Tensor.new_tensor": one(lambda x: x.new_tensor(x)),
    "Tensor.new_tensor of a list": one(lambda x: x.new_tensor([x[0, 0]])),
    "torch.full": one(lambda x: torch.full((3,), x[0, 0])),
    "sparse_coo_tensor": (
        lambda: (indices(), floats(6)),
        lambda i, v: torch.sparse_coo_tensor(i, v).to_dense(),
    ),
    "sparse_coo_tensor(check_invariants=True)": (
        lambda: (indices(), floats(6)),
        lambda i, v: torch.sparse_coo_tensor(i, v, check_invariants=True).to_dense(),
    ),
    "sparse_csr_tensor(check_invariants=True)": (
        lambda: (torch.arange(7), torch.arange(6), floats(6)),
        lambda c, i, v: torch.sparse_csr_tensor(c, i, v, check_invariants=True).to_dense(),
    ),
    "sparse_bsr_tensor(check_invariants=True)": (
        lambda: (torch.arange(4), torch.arange(3), floats(3, 2, 2)),
        lambda c, i, v: torch.sparse_bsr_tensor(c, i, v, check_invariants=True).to_dense(),
    ),
    "sparse adjacency": (lambda: (indices(), floats(6), floats(6, 4)), graph),
    "to_sparse": one(lambda x: x.to_sparse().to_dense()),
    "to_sparse_csr": one(lambda x: x.to_sparse_csr().to_dense()),
    "nested_tensor": one(lambda x: torch.nested.nested_tensor(rows(x)).unbind()),
    "as_nested_tensor": one(lambda x: torch.nested.as_nested_tensor(rows(x)).unbind()),
    "nested_tensor(jagged)": one(
        lambda x: torch.nested.nested_tensor(rows(x), layout=torch.jagged).unbind()
    ),
    "nested_tensor_from_jagged": (
        lambda: (floats(21, 2), torch.cumsum(torch.arange(7), 0)),
        lambda x, o: torch.nested.nested_tensor_from_jagged(x, offsets=o).unbind(),
    ),
    "nested to_padded_tensor": (
        lambda: (floats(21, 2), torch.cumsum(torch.arange(7), 0)),
        lambda x, o: torch.nested.nested_tensor_from_jagged(x, offsets=o).to_padded_tensor(0.5),
    ),
    "nested.narrow": (
        lambda: (floats(6, 6), torch.zeros(6, dtype=torch.int64), lengths()),
        lambda x, s, n: torch.nested.narrow(x, 1, s, n, layout=torch.jagged).unbind(),
    ),
    # lengths and indices
    "pack_padded_sequence": sequence(packed),
    "pad_packed_sequence": sequence(lambda x, n: rnn.pad_packed_sequence(packed(x, n))),
    "pack_sequence": one(lambda x: rnn.pack_sequence(rows(x), enforce_sorted=False)),
    "pad_sequence": one(lambda x: rnn.pad_sequence(rows(x))),
    "unpad_sequence": sequence(lambda x, n: rnn.unpad_sequence(x, n, batch_first=True)),
    "unpack_sequence": sequence(lambda x, n: rnn.unpack_sequence(packed(x, n))),
    "packed LSTM": sequence(network(nn.LSTM)),
    "packed GRU": sequence(network(nn.GRU)),
    "packed RNN": sequence(network(nn.RNN)),
    "tensor_split": (lambda: (floats(6, 6), ints(1, 3)), torch.tensor_split),
    "Tensor.tensor_split": (lambda: (floats(6, 6), ints(1, 3)), Tensor.tensor_split),
    "repeat_interleave": (lambda: (floats(6), lengths()), torch.repeat_interleave),
    "ctc_loss": (
        lambda: (
            floats(9, 6, 5).log_softmax(2),
            ints(*[1] * 24).view(6, 4),
            lengths() + 3,
            ints(*[4] * 6),
        ),
        F.ctc_loss,
    ),
    "ctc_loss, lengths of another type": (
        lambda: (
            floats(9, 6, 5).log_softmax(2),
            ints(*[1] * 24).view(6, 4),
            (lengths() + 3).int(),
            ints(*[4] * 6).int(),
        ),
        F.ctc_loss,
    ),
    "embedding_bag": (
        lambda: (lengths() % 3, floats(3, 4), ints(0, 2)),
        lambda i, w, o: F.embedding_bag(i, w, o),
    ),
    "gradient": (
        lambda: (floats(6), floats(6).cumsum(0)),
        lambda x, s: torch.gradient(x, spacing=(s,)),
    ),
    "bincount": whole(torch.bincount),
    "one_hot": whole(F.one_hot),
    "unique": one(lambda x: torch.unique(x, return_inverse=True)),
    "cumulative distribution": one(lambda x: torch.quantile(x, x[0])),
    "grid_sample": (
        lambda: (floats(1, 1, 4, 4), floats(1, 2, 2, 2)),
        lambda x, g: F.grid_sample(x, g, align_corners=False),
    ),
    "cdist": two(torch.cdist),
    "linalg.matrix_power": (square, lambda x: torch.linalg.matrix_power(x, -2)),
    "linalg.matrix_rank": (square, torch.linalg.matrix_rank),
    "linalg.pinv": (square, torch.linalg.pinv),
    # The default driver's result depends on what malloc's memory held, in plain torch too.
    "linalg.lstsq": two(lambda x, y: torch.linalg.lstsq(x, y, driver="gels").solution),
    "stft": (lambda: (floats(64),), lambda x: torch.stft(x, 16, return_complex=True)),
    # nn.utils, autograd, func, optim
    "clip_grad_norm_": two(clipped),
    "parameters_to_vector": two(lambda x, y: nn.utils.parameters_to_vector([x, y])),
    "spectral_norm": one(
        lambda x: (
            torch.manual_seed(0),
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))(x),
        )[1]
    ),
    "weight_norm": one(
        lambda x: (torch.manual_seed(0), nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))(x))[
            1
        ]
    ),
    "prune": one(
        lambda x: (
            torch.manual_seed(0),
            prune.l1_unstructured(nn.Linear(6, 6), "weight", amount=0.3)(x),
        )[1]
    ),
    "autograd.grad": one(
        lambda x: torch.autograd.grad(x.requires_grad_().sin().sum(), x, create_graph=True)
    ),
    "autograd.functional.jacobian": one(lambda x: torch.autograd.functional.jacobian(torch.sin, x)),
    "autograd.functional.hvp": two(
        lambda x, v: torch.autograd.functional.hvp(lambda t: t.sin().sum(), x, v)
    ),
    "func.vmap": two(lambda x, y: torch.func.vmap(torch.dot)(x, y)),
    "func.grad": one(torch.func.grad(lambda x: x.sin().sum())),
    "func.jacrev": one(torch.func.jacrev(torch.sin)),
    "func.vmap of tensor_split": one(
        lambda x: torch.func.vmap(lambda row: torch.tensor_split(row, (2,)))(x)
    ),
    "checkpoint": one(
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    ),
    "jit.trace": one(lambda x: torch.jit.trace(torch.sin, x, check_trace=False)(x)),
    "DataLoader": one(
        lambda x: list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2))
    ),
    "default_collate": one(lambda x: torch.utils.data.default_collate(list(x))),
    "distributions.Normal": distribution(torch.distributions.Normal),
    "distributions.Gamma": distribution(torch.distributions.Gamma),
    "distributions.Beta": distribution(torch.distributions.Beta),
    "distributions.Categorical": one(
        lambda x: torch.distributions.Categorical(x).log_prob(torch.arange(6))
    ),
    "distributions.MultivariateNormal": (
        lambda: (floats(6), torch.eye(6) * 2),
        lambda m, c: torch.distributions.MultivariateNormal(m, c).log_prob(m),
    ),
    "testing.assert_close": one(lambda x: torch.testing.assert_close(x, x + 0)),
    "allclose": two(torch.allclose),
    "quantize": one(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()),
}
