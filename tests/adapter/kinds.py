"""Every kind of tensor that torch has and that can be made on a CPU, with operators on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor

Results = list[Tensor]


@dataclass(frozen=True)
class Kind:
    """`make` makes one from two plain tensors of 8 x 8; `use` makes plain tensors from it."""

    name: str
    make: Callable[[Tensor, Tensor], Tensor]
    use: Callable[[Tensor], Results]
    # Operators inside of which the tensor exists (vmap, for example): `use` is given plain ones.
    inside: Callable[[Callable[[Tensor], Results], Tensor, Tensor], Results] | None = None

    def run(self, x: Tensor, y: Tensor, between: Callable[[], None]) -> Iterator[Tensor]:
        """The results, each read after `between`, which evicts what can be evicted."""
        if self.inside is not None:
            results = self.inside(self.use, x, y)
        else:
            tensor = self.make(x, y)
            between()
            results = self.use(tensor)
            between()
            results += self.use(tensor)
        for result in results:
            between()
            yield result


class Marked(Tensor):
    """A subclass with __torch_dispatch__ whose memory is its own."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def quantized(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: torch.quantize_per_tensor(x + y, 0.1, 5, dtype)


def by_channel(points: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    def make(x: Tensor, y: Tensor) -> Tensor:
        scales = y.abs().sum(1).double() * 0.01 + 0.01
        zeros = (x.abs().sum(1) % 4).to(points)
        if points.is_floating_point:
            scales = scales.float()
        return torch.quantize_per_channel(x, scales, zeros, 0, torch.quint8)

    return make


def use_quantized(q: Tensor) -> Results:
    return [
        q.dequantize(),
        q.int_repr(),
        q.flip(0).dequantize(),
        q.clone().int_repr(),
        torch.relu(q).dequantize(),
        q.t().contiguous().dequantize(),
    ]


def use_channels(q: Tensor) -> Results:
    results = [q.dequantize(), q.int_repr(), q.q_per_channel_scales() * 2]
    if q.qscheme() == torch.per_channel_affine:  # torch copies no other
        results.append(q.clone().dequantize())
    return results


def write_quantized(q: Tensor) -> Results:
    copy = q.clone()
    copy.copy_(q.dequantize() * 2)
    return [copy.dequantize(), copy.int_repr()]


def use_sparse(s: Tensor) -> Results:
    dense = torch.arange(64.0).view(8, 8)
    products = [] if s.layout == torch.sparse_bsc else [s @ dense]  # torch has none of that
    return [s.to_dense(), (s * 2).to_dense(), *products]


def write_sparse(s: Tensor) -> Results:
    copy = s.clone()
    copy.mul_(3)
    values = copy._values() if copy.layout == torch.sparse_coo else copy.values()
    return [copy.to_dense(), values + 1]


def use_strided(t: Tensor) -> Results:
    results = [t * 2, t + t, t.clone(), t.flip(0), t.sum()]
    return results + [r.resolve_conj().resolve_neg() for r in (t, t.contiguous())]


def use_complex(t: Tensor) -> Results:
    return [*use_strided(t), t @ t.mT, torch.view_as_real(t.resolve_conj()) * 1]


def use_nested(n: Tensor) -> Results:
    padded = torch.nested.to_padded_tensor(n, 0.0)
    twice = torch.nested.to_padded_tensor(n * 2, 1.0)
    return [padded, twice, *(part + 1 for part in n.unbind())]


def write_nested(n: Tensor) -> Results:
    copy = n.clone()
    copy.mul_(3)
    return [torch.nested.to_padded_tensor(copy, 0.0)]


def use_jagged(n: Tensor) -> Results:
    return [n.values() * 2, (n * 2).values(), n.sin().offsets(), n.to_padded_tensor(0.0)]


def use_opaque(m: Tensor) -> Results:
    return [m.to_dense(), torch.relu(m).to_dense(), (m + m).to_dense()]


def use_zero(z: Tensor) -> Results:
    ones = torch.ones(8, 8)
    return [z + ones, ones * z, torch.add(ones, z), z.clone(), z.sum()]


def use_pair(t: Tensor) -> Results:
    twice = t * 2
    assert isinstance(twice, TwoTensor)
    return [twice.a, twice.b, (t @ t).a]


def use_marked(t: Tensor) -> Results:
    return [(t * 2).as_subclass(Tensor), (t + t).sin().as_subclass(Tensor)]


def use_meta(m: Tensor) -> Results:
    return [torch.zeros((m * 2).shape), torch.zeros((m @ m).shape)]


def in_inference_mode(use: Callable[[Tensor], Results], x: Tensor, y: Tensor) -> Results:
    with torch.inference_mode():
        return [r.clone() for r in use(x + y)]


def in_vmap(use: Callable[[Tensor], Results], x: Tensor, y: Tensor) -> Results:
    return list(torch.vmap(lambda a, b: tuple(use(a * b)))(x, y))


def in_grad(use: Callable[[Tensor], Results], x: Tensor, y: Tensor) -> Results:
    return [torch.func.grad(lambda a: sum(r.sum() for r in use(a * y)))(x)]


def in_functionalize(use: Callable[[Tensor], Results], x: Tensor, y: Tensor) -> Results:
    def program(a: Tensor) -> tuple[Tensor, ...]:
        b = a * y
        b.add_(1)
        return tuple(use(b))

    return list(torch.func.functionalize(program)(x))


def in_forward_mode(use: Callable[[Tensor], Results], x: Tensor, y: Tensor) -> Results:
    with forward_ad.dual_level():
        parts = [forward_ad.unpack_dual(r) for r in use(forward_ad.make_dual(x, y))]
        return [part for pair in parts for part in pair if part is not None]


def symbolic(x: Tensor, y: Tensor) -> Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.empty(5, 7), static_shapes=False)


def compressed(layout: torch.layout) -> Callable[[Tensor, Tensor], Tensor]:
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return lambda x, y: (x * y).to_sparse(layout=layout, blocksize=block)


def complex_of(x: Tensor, y: Tensor) -> Tensor:
    return torch.complex(x, y)


def elementwise(t: Tensor) -> Results:
    return [t * 2, t.sin(), t.clone()]


KINDS = [
    Kind("plain", lambda x, y: x * y, use_strided),
    Kind("expanded", lambda x, y: (x * y)[0].expand(4, 8), use_strided),
    Kind("empty", lambda x, y: (x * y)[:0], use_strided),
    Kind("a number", lambda x, y: (x * y)[1, 1], lambda t: [t * 2, t + 1, t.clone()]),
    Kind("half", lambda x, y: (x * y).half(), use_strided),
    Kind("float8", lambda x, y: (x * y).to(torch.float8_e4m3fn), lambda t: [t.float(), t.clone()]),
    Kind("bool", lambda x, y: x > y, lambda t: [~t, t.flip(1), t.clone(), t.sum()]),
    *(
        Kind(f"quantized to {dtype}", quantized(dtype), use)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
        for use in (use_quantized, write_quantized)
    ),
    Kind("quantized by channel", by_channel(torch.int64), use_channels),
    Kind("quantized by channel, float", by_channel(torch.float), use_channels),
    Kind("complex", complex_of, use_complex),
    Kind("conjugate", lambda x, y: complex_of(x, y).conj(), use_complex),
    Kind("negative", lambda x, y: complex_of(x, y).conj().imag, use_strided),
    Kind(
        "conjugate and negative",
        lambda x, y: torch._neg_view(complex_of(x, y).conj()),
        use_complex,
    ),
    Kind("complex seen as real", lambda x, y: torch.view_as_real(complex_of(x, y)), use_strided),
    Kind(
        "real seen as complex",
        lambda x, y: torch.view_as_complex((x * y).view(8, 4, 2)),
        use_strided,
    ),
    Kind("sparse", lambda x, y: (x * (y > 0)).to_sparse(), use_sparse),
    Kind("sparse, written", lambda x, y: (x * (y > 0)).to_sparse(), write_sparse),
    *(
        Kind(f"sparse {layout}", compressed(layout), use_sparse)
        for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    ),
    Kind("sparse csr, written", compressed(torch.sparse_csr), write_sparse),
    Kind("nested", lambda x, y: torch.nested.as_nested_tensor([x * 2, y[:3] + 1]), use_nested),
    Kind(
        "nested, written",
        lambda x, y: torch.nested.as_nested_tensor([x * 2, y[:3] + 1]),
        write_nested,
    ),
    Kind(
        "jagged",
        lambda x, y: torch.nested.as_nested_tensor([x * 2, y[:3] + 1], layout=torch.jagged),
        use_jagged,
    ),
    Kind("oneDNN's", lambda x, y: (x * y).to_mkldnn(), use_opaque),
    Kind("zero", lambda x, y: torch._efficientzerotensor((8, 8)), use_zero),
    Kind("two in one", lambda x, y: TwoTensor(x * 2, y + 1), use_pair),
    Kind("marked", lambda x, y: (x * y).as_subclass(Marked), use_marked),
    Kind("meta", lambda x, y: (x * y).to("meta"), use_meta),
    Kind("fake, of symbolic sizes", symbolic, lambda t: [torch.zeros((t * 2).dim())]),
    Kind("copy on write", lambda x, y: torch._lazy_clone(x * y), use_strided),
    Kind("of inference mode", lambda x, y: x * y, use_strided, in_inference_mode),
    Kind("batched", lambda x, y: x * y, elementwise, in_vmap),
    Kind("with a gradient of functorch's", lambda x, y: x * y, elementwise, in_grad),
    Kind("functional", lambda x, y: x * y, elementwise, in_functionalize),
    Kind("dual", lambda x, y: x * y, elementwise, in_forward_mode),
]
