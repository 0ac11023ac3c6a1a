"""Layers on a tape. Each consumes one reference of its tensors and returns a new tensor."""

import math
from collections.abc import Sequence

from benchmarks.traces.tape import Parameter, Shape, Tape, Tensor

LARGEST_WORKSPACE_BYTES = 32 << 20


def conv(tape: Tape, x: Tensor, weight: Parameter, stride: int = 1) -> Tensor:
    """Images are (batch, channels, height, width); the weight is (out, in, kernel, kernel)."""
    batch, channels, height, width = x.shape
    w = weight.weight
    assert w.shape[1] == channels
    shape = (batch, w.shape[0], height // stride, width // stride)
    flops = 2 * math.prod(shape) * math.prod(w.shape[1:])
    workspace = min(x.bytes // 4, LARGEST_WORKSPACE_BYTES) if w.shape[2] > 1 else 0
    (y,) = tape.run(
        "aten::convolution", [x, w], [shape], flops=flops, workspace_bytes=workspace, side="left"
    )

    def backward(grad: Tensor) -> None:
        shapes = [x.shape, w.shape] if x.needs_grad else [w.shape]
        made = tape.run(
            "aten::convolution_backward",
            [grad, x, w],
            shapes,
            flops=len(shapes) * flops,
            workspace_bytes=workspace,
            side="left",
        )
        tape.drop(grad)
        if x.needs_grad:
            tape.give_grad(x, made[0])
        tape.give_grad(w, made[-1])

    tape.record(y, [x, w], backward)
    tape.drop(x)
    return y


def linear(tape: Tape, x: Tensor, weight: Parameter) -> Tensor:
    """(rows, in) times (in, out)."""
    w = weight.weight
    rows, width = x.shape
    assert w.shape[0] == width
    flops = 2 * rows * width * w.shape[1]
    (y,) = tape.run("aten::mm", [x, w], [(rows, w.shape[1])], flops=flops, side="left")

    def backward(grad: Tensor) -> None:
        if x.needs_grad:
            (dx,) = tape.run("aten::mm", [grad, w], [x.shape], flops=flops, side="left")
            tape.give_grad(x, dx)
        (dw,) = tape.run("aten::mm", [x, grad], [w.shape], flops=flops, side="left")
        tape.drop(grad)
        tape.give_grad(w, dw)

    tape.record(y, [x, w], backward)
    tape.drop(x)
    return y


def batch_norm(tape: Tape, x: Tensor, scale: Parameter, statistics: Tensor) -> Tensor:
    """Writes the running statistics, a root, and makes other outputs (Rule 7)."""
    channels = (2 * x.shape[1],)
    y, saved = tape.run(
        "aten::native_batch_norm", [x, scale.weight], [x.shape, channels], writes=[statistics]
    )

    def backward(grad: Tensor) -> None:
        dx, dscale = tape.run(
            "aten::native_batch_norm_backward",
            [grad, x, scale.weight, saved],
            [x.shape, scale.weight.shape],
        )
        tape.drop(grad)
        tape.give_grad(x, dx)
        tape.give_grad(scale.weight, dscale)

    tape.record(y, [x, scale.weight, saved], backward)
    tape.drop(x, saved)
    return y


def layer_norm(tape: Tape, x: Tensor, scale: Parameter) -> Tensor:
    rows = (2 * x.shape[0],)
    y, saved = tape.run("aten::native_layer_norm", [x, scale.weight], [x.shape, rows])

    def backward(grad: Tensor) -> None:
        dx, dscale = tape.run(
            "aten::native_layer_norm_backward",
            [grad, x, scale.weight, saved],
            [x.shape, scale.weight.shape],
        )
        tape.drop(grad)
        tape.give_grad(x, dx)
        tape.give_grad(scale.weight, dscale)

    tape.record(y, [x, scale.weight, saved], backward)
    tape.drop(x, saved)
    return y


def activation(tape: Tape, x: Tensor, name: str, *, saves_input: bool = False) -> Tensor:
    """Elementwise; backward reads the result (relu, tanh, sigmoid) or the input (gelu)."""
    (y,) = tape.run(f"aten::{name}", [x], [x.shape])
    saved = x if saves_input else y

    def backward(grad: Tensor) -> None:
        (dx,) = tape.run(f"aten::{name}_backward", [grad, saved], [x.shape])
        tape.drop(grad)
        tape.give_grad(x, dx)

    tape.record(y, [saved], backward)
    tape.drop(x)
    return y


def activation_(tape: Tape, x: Tensor, name: str) -> Tensor:
    """In place: the storage stays, its content changes; backward reads the new content."""
    tape.run(f"aten::{name}_", [], writes=[x])

    def backward(grad: Tensor) -> None:
        (dx,) = tape.run(f"aten::{name}_backward", [grad, x], [x.shape])
        tape.drop(grad)
        tape.give_grad(x, dx)

    tape.record(x, [x], backward)
    return x


def add(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    (y,) = tape.run("aten::add", [a, b], [a.shape])
    _record_sum(tape, y, a, b)
    tape.drop(a, b)
    return y


def add_(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """a += b"""
    tape.run("aten::add_", [b], writes=[a])
    _record_sum(tape, a, a, b)
    tape.drop(b)
    return a


def _record_sum(tape: Tape, y: Tensor, a: Tensor, b: Tensor) -> None:
    def backward(grad: Tensor) -> None:
        for tensor in (a, b):
            if tensor.needs_grad:
                tape.give_grad(tensor, tape.keep(grad))
        tape.drop(grad)

    tape.record(y, [], backward)


def multiply(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    (y,) = tape.run("aten::mul", [a, b], [a.shape])

    def backward(grad: Tensor) -> None:
        for tensor, other in ((a, b), (b, a)):
            if tensor.needs_grad:
                (product,) = tape.run("aten::mul", [grad, other], [tensor.shape])
                tape.give_grad(tensor, product)
        tape.drop(grad)

    tape.record(y, [a, b], backward)
    tape.drop(a, b)
    return y


def concatenate(tape: Tape, tensors: Sequence[Tensor]) -> Tensor:
    """Along the channels."""
    batch, _, height, width = tensors[0].shape
    shape = (batch, sum(t.shape[1] for t in tensors), height, width)
    (y,) = tape.run("aten::cat", list(tensors), [shape])
    _record_resized(tape, y, tensors, "aten::slice_backward")
    tape.drop(*tensors)
    return y


def resize(tape: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """Pooling, upsampling, chunks: another shape, and backward needs no saved tensor."""
    (y,) = tape.run(f"aten::{name}", [x], [shape])
    _record_resized(tape, y, [x], f"aten::{name}_backward")
    tape.drop(x)
    return y


def _record_resized(tape: Tape, y: Tensor, inputs: Sequence[Tensor], name: str) -> None:
    def backward(grad: Tensor) -> None:
        for tensor in inputs:
            if tensor.needs_grad:
                (dx,) = tape.run(name, [grad], [tensor.shape])
                tape.give_grad(tensor, dx)
        tape.drop(grad)

    tape.record(y, [], backward)


def loss(tape: Tape, x: Tensor, target: Tensor) -> Tensor:
    """A scalar; the logarithms are saved."""
    (logs,) = tape.run("aten::_log_softmax", [x], [x.shape])
    (y,) = tape.run("aten::nll_loss_forward", [logs, target], [(1,)])

    def backward(grad: Tensor) -> None:
        (dlogs,) = tape.run("aten::nll_loss_backward", [grad, logs, target], [x.shape])
        (dx,) = tape.run("aten::_log_softmax_backward_data", [dlogs, logs], [x.shape])
        tape.drop(grad, dlogs)
        tape.give_grad(x, dx)

    tape.record(y, [logs, target], backward)
    tape.drop(x, logs, target)
    return y
