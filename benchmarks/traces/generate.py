"""Generates the shipped traces: `python -m benchmarks.traces.generate [--into FOLDER] [NAME ...]`.

Each is a few training steps of a small network of one kind, as eager autograd would run them:
forward with saved activations, backward that consumes them, gradients, an optimizer that writes
its roots, step marks. They stand in for recorded traces, and are test fixtures: the golden decision
logs under tests/core/golden depend on them.
"""

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.traces import layers
from benchmarks.traces.tape import Parameter, Tape, Tensor
from coop.trace import TraceWriter

FOLDER = Path(__file__).parent
NUM_STEPS = 3


class Conv:
    """Convolution, batch norm, and by default relu; optionally in place as torchvision does it."""

    def __init__(
        self,
        tape: Tape,
        channels_in: int,
        channels_out: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        relu: bool = True,
        inplace: bool = False,
    ) -> None:
        self.tape = tape
        self.weight = tape.parameter((channels_out, channels_in, kernel, kernel))
        self.scale = tape.parameter((2 * channels_out,))
        self.statistics = tape.root((2 * channels_out,))
        self.stride = stride
        self.relu = relu
        self.inplace = inplace

    def __call__(self, x: Tensor) -> Tensor:
        x = layers.conv(self.tape, x, self.weight, self.stride)
        x = layers.batch_norm(self.tape, x, self.scale, self.statistics)
        if not self.relu:
            return x
        if self.inplace:
            return layers.activation_(self.tape, x, "relu")
        return layers.activation(self.tape, x, "relu")


class Bottleneck:
    """ResNet's: 1x1, 3x3, 1x1 and a shortcut."""

    def __init__(
        self, tape: Tape, channels_in: int, width: int, stride: int = 1, *, inplace: bool = False
    ) -> None:
        self.tape = tape
        self.inplace = inplace
        self.reduce = Conv(tape, channels_in, width, 1, inplace=inplace)
        self.spatial = Conv(tape, width, width, 3, stride, inplace=inplace)
        self.expand = Conv(tape, width, 4 * width, 1, relu=False)
        self.shortcut: Conv | None = None
        if stride > 1 or channels_in != 4 * width:
            self.shortcut = Conv(tape, channels_in, 4 * width, 1, stride, relu=False)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.expand(self.spatial(self.reduce(self.tape.keep(x))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        if self.inplace:
            return layers.activation_(self.tape, layers.add_(self.tape, y, x), "relu")
        return layers.activation(self.tape, layers.add(self.tape, y, x), "relu")


def classify(tape: Tape, x: Tensor, head: Parameter) -> None:
    """Pools, classifies, goes back, optimizes."""
    batch, channels = x.shape[:2]
    x = layers.resize(tape, x, (batch, channels), "mean")
    x = layers.linear(tape, x, head)
    tape.backward(layers.loss(tape, x, tape.root((batch,))))
    tape.optimize()


def chain(tape: Tape) -> None:
    """A plain convolutional network, as VGG: every activation is needed once, in reverse order."""
    widths = [(width, 2 if i == 0 else 1) for width in (64, 128, 256) for i in range(12)]
    convs, channels = [], 3
    for width, stride in widths:
        convs.append(Conv(tape, channels, width, 3, stride))
        channels = width
    head = tape.parameter((channels, 1000))
    for _ in range(NUM_STEPS):
        x = tape.root((32, 3, 112, 112))
        for convolution in convs:
            x = convolution(x)
        classify(tape, x, head)


def _resnet(tape: Tape, *, inplace: bool) -> None:
    stem = Conv(tape, 3, 64, 7, 2, inplace=inplace)
    blocks, channels = [], 64
    for width, depth in ((64, 4), (128, 6), (256, 8)):
        for index in range(depth):
            stride = 2 if index == 0 and width > 64 else 1
            blocks.append(Bottleneck(tape, channels, width, stride, inplace=inplace))
            channels = 4 * width
    head = tape.parameter((channels, 1000))
    for _ in range(NUM_STEPS):
        x = stem(tape.root((16, 3, 224, 224)))
        x = layers.resize(tape, x, (16, 64, 56, 56), "max_pool2d")
        for block in blocks:
            x = block(x)
        classify(tape, x, head)


def residual(tape: Tape) -> None:
    """A residual network without in-place operators."""
    _resnet(tape, inplace=False)


def inplace(tape: Tape) -> None:
    """A residual network as torchvision writes it: relu_ and += on almost every activation."""
    _resnet(tape, inplace=True)


def repeated(tape: Tape, width: int) -> list[Conv]:
    return [Conv(tape, width, width) for _ in range(3)]


def apply(convs: list[Conv], x: Tensor) -> Tensor:
    for convolution in convs:
        x = convolution(x)
    return x


def ushape(tape: Tape) -> None:
    """A U-Net: the first activations are the largest and are needed last."""
    widths = (16, 32, 64, 128)
    down, channels = [], 3
    for width in widths:
        down.append([Conv(tape, channels, width), *repeated(tape, width)])
        channels = width
    bottom = [Conv(tape, channels, 256), *repeated(tape, 256)]
    up, channels = [], 256
    for width in reversed(widths):
        up.append([Conv(tape, channels + width, width), *repeated(tape, width)])
        channels = width
    head = tape.parameter((4, channels, 1, 1))
    for _ in range(NUM_STEPS):
        x = tape.root((8, 3, 192, 192))
        skips = []
        for convs in down:
            x = apply(convs, x)
            skips.append(tape.keep(x))
            batch, channels, height, width = x.shape
            x = layers.resize(tape, x, (batch, channels, height // 2, width // 2), "max_pool2d")
        x = apply(bottom, x)
        for convs in up:
            batch, channels, height, width = x.shape
            x = layers.resize(tape, x, (batch, channels, 2 * height, 2 * width), "upsample")
            x = apply(convs, layers.concatenate(tape, [x, skips.pop()]))
        x = layers.conv(tape, x, head)
        tape.backward(layers.loss(tape, x, tape.root((8, 1, 192, 192))))
        tape.optimize()


def rnn(tape: Tape) -> None:
    """An unrolled LSTM: many small operators, weights shared by all time steps."""
    batch, width, length = 512, 512, 60
    into = tape.parameter((width, 4 * width))
    across = tape.parameter((width, 4 * width))
    head = tape.parameter((width, 1000))
    for _ in range(NUM_STEPS):
        sequence = tape.root((length * batch, width))
        hidden, cell = tape.root((batch, width)), tape.root((batch, width))
        for _ in range(length):
            x = tape.view(sequence, (batch, width))
            gates = layers.add(
                tape,
                layers.linear(tape, x, into),
                layers.linear(tape, hidden, across),
            )
            parts = []
            for name in ("sigmoid", "sigmoid", "tanh", "sigmoid"):
                part = layers.resize(tape, tape.keep(gates), (batch, width), "chunk")
                parts.append(layers.activation(tape, part, name))
            tape.drop(gates)
            remember, update, candidate, expose = parts
            cell = layers.add(
                tape,
                layers.multiply(tape, remember, cell),
                layers.multiply(tape, update, candidate),
            )
            squashed = layers.activation(tape, tape.keep(cell), "tanh")
            hidden = layers.multiply(tape, expose, squashed)
        tape.drop(cell, sequence)
        x = layers.linear(tape, hidden, head)
        tape.backward(layers.loss(tape, x, tape.root((batch,))))
        tape.optimize()


def random_path(tape: Tape) -> None:
    """A supernet: every step takes another random path through blocks of different widths."""
    choices = random.Random(20231101)
    stem = Conv(tape, 3, 64, 3, 2)
    stages, channels = [], 64
    for width in (32, 32, 64, 64, 64, 128, 128, 128):
        stride = 2 if 4 * width > channels else 1
        options = []
        for kernel, factor in ((3, 1), (5, 1), (7, 1), (3, 2)):
            narrow = width * factor
            options.append(
                (
                    Conv(tape, channels, narrow, 1),
                    Conv(tape, narrow, narrow, kernel, stride),
                    Conv(tape, narrow, 4 * width, 1),
                )
            )
        stages.append(options)
        channels = 4 * width
    head = tape.parameter((channels, 1000))
    for _ in range(2 * NUM_STEPS):
        x = stem(tape.root((64, 3, 128, 128)))
        for options in stages:
            for convolution in choices.choice(options):
                x = convolution(x)
        classify(tape, x, head)


TRACES: dict[str, Callable[[Tape], None]] = {
    "chain": chain,
    "residual": residual,
    "ushape": ushape,
    "rnn": rnn,
    "random_path": random_path,
    "inplace": inplace,
}


def generate(name: str, path: Path) -> None:
    """Writes one of `TRACES`; always the same content."""
    build = TRACES[name]
    assert build.__doc__ is not None
    with TraceWriter(path, comment=build.__doc__) as writer:
        build(Tape(writer))


def main() -> None:
    parser = argparse.ArgumentParser(description="Generates the shipped traces.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRACES))
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER")
    args = parser.parse_args()
    for name in args.names or TRACES:
        if name not in TRACES:
            parser.error(f"unknown trace {name!r}; choose from {', '.join(TRACES)}")
        path = args.into / f"{name}.jsonl.gz"
        generate(name, path)
        print(path)


if __name__ == "__main__":
    main()
