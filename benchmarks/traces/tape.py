"""A tape that writes the trace of a training step, the way eager autograd would run it.

Tensors are shapes with a reference count: a function here *consumes* one reference of every tensor
it is given (`keep` adds one), so that storages die where they would in a program. What backward
needs is held by the tape until its turn has come.

Costs are a roofline in whole nanoseconds: a launch, and the larger of arithmetic and traffic.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coop.trace import MemoryStep, Side, TraceWriter

ELEMENT_BYTES = 2  # bf16
LAUNCH_NS = 2_000
FLOPS_PER_NS = 100_000  # 100 TFLOP/s
BYTES_PER_NS = 1_500  # 1.5 TB/s

Shape = tuple[int, ...]


@dataclass(eq=False)
class Tensor:
    """A storage, or a view of one; references to a storage are counted as Python would."""

    storage: int
    shape: Shape
    references: int = 1
    needs_grad: bool = False
    base: "Tensor | None" = None  # of a view

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES


@dataclass(eq=False)
class Parameter:
    """A weight with the state of its optimizer."""

    weight: Tensor
    state: list[Tensor]
    grad: Tensor | None = None


@dataclass
class Node:
    """How to go back: from the gradient of `output` to those of its inputs."""

    output: Tensor
    saved: list[Tensor]
    backward: Callable[[Tensor], None]


@dataclass
class Tape:
    """Runs operators and writes them; remembers how to go back."""

    writer: TraceWriter
    nodes: list[Node] = field(default_factory=list)
    grads: dict[int, Tensor] = field(default_factory=dict)  # by storage of the tensor
    parameters: list[Parameter] = field(default_factory=list)
    num_storages: int = 0
    forward: bool = True  # neither going back nor in an optimizer

    # --- storages --------------------------------------------------------------------------------
    def new(self, shape: Shape) -> Tensor:
        self.num_storages += 1
        return Tensor(self.num_storages, shape)

    def root(self, shape: Shape) -> Tensor:
        tensor = self.new(shape)
        self.writer.root(tensor.storage, tensor.bytes)
        return tensor

    def parameter(self, shape: Shape) -> Parameter:
        weight = self.root(shape)
        weight.needs_grad = True
        made = Parameter(weight, [self.root(shape)])
        self.parameters.append(made)
        return made

    def view(self, base: Tensor, shape: Shape) -> Tensor:
        """A part of `base`, which is not consumed: a view is only geometry (Rule 1)."""
        return Tensor(base.storage, shape, base=self.keep(base))

    def keep(self, tensor: Tensor) -> Tensor:
        (tensor.base or tensor).references += 1
        return tensor

    def drop(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            owner = tensor.base or tensor
            owner.references -= 1
            assert owner.references >= 0
            if owner.references == 0:
                self.writer.free(owner.storage)

    # --- operators -------------------------------------------------------------------------------
    def run(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Shape] = (),
        *,
        flops: int = 0,
        writes: Sequence[Tensor] = (),
        workspace_bytes: int = 0,
        side: Side = "right",
    ) -> list[Tensor]:
        """Runs one operator; keeps all references as they are."""
        made = [self.new(shape) for shape in outputs]
        traffic = sum(t.bytes for t in [*inputs, *made, *writes]) + 2 * workspace_bytes
        memory: list[MemoryStep] = []
        if workspace_bytes:
            # As cuDNN is called: the result first, then the workspace.
            memory = [("output", index) for index in range(len(made))]
            memory += [("temporary", workspace_bytes), ("free", 0)]
        self.writer.operator(
            name,
            LAUNCH_NS + max(flops // FLOPS_PER_NS, traffic // BYTES_PER_NS),
            inputs=[t.storage for t in inputs],
            outputs=[(t.storage, t.bytes) for t in made],
            writes=[t.storage for t in writes],
            memory=memory,
            side=side,
            backward=not self.forward,
        )
        return made

    def record(
        self, output: Tensor, saved: Sequence[Tensor], backward: Callable[[Tensor], None]
    ) -> None:
        """`backward` gets the gradient of `output` and owns it; `saved` are held until then."""
        output.needs_grad = True
        self.nodes.append(Node(output, [self.keep(t) for t in saved], backward))

    def give_grad(self, tensor: Tensor, grad: Tensor) -> None:
        """Adds a gradient, owned, to what `tensor` has got so far."""
        first = self.grads.get(tensor.storage)
        if first is None:
            self.grads[tensor.storage] = grad
        elif first.references == 1:
            self.run("aten::add_", [grad], writes=[first])
            self.drop(grad)
        else:
            # The buffer is another tensor's gradient too: autograd adds out of place then.
            (self.grads[tensor.storage],) = self.run("aten::add", [first, grad], [tensor.shape])
            self.drop(first, grad)

    def backward(self, loss: Tensor) -> None:
        """Goes back from `loss`, which is consumed; parameters get their gradients."""
        (grad,) = self.run("aten::ones_like", [loss], [loss.shape])
        self.forward = False
        self.grads[loss.storage] = grad
        self.drop(loss)
        while self.nodes:
            node = self.nodes.pop()
            grad = self.grads.pop(node.output.storage)
            node.backward(grad)
            self.drop(*node.saved)
            self.accumulate()
        assert not self.grads

    def accumulate(self) -> None:
        """Parameters that no node to come will use store their gradient."""
        for parameter in self.parameters:
            weight = parameter.weight
            if weight.storage in self.grads and weight.references == 1:
                parameter.grad = self.grads.pop(weight.storage)
                self.writer.make_root(parameter.grad.storage)

    def optimize(self) -> None:
        """SGD with momentum, then zero_grad(set_to_none=True)."""
        self.writer.begin_step()
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            momentum = parameter.state[0]
            self.run("aten::mul_", [], writes=[momentum])
            self.run("aten::add_", [parameter.grad], writes=[momentum])
            self.run("aten::add_", [momentum], writes=[parameter.weight])
        self.writer.end_step()
        self.forward = True
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.drop(parameter.grad)
                parameter.grad = None
