"""Random operators: what is drawn again in a replay must be what was drawn the first time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from .outcome import Outcome, Registry, collect

CORNERS = Registry()


def chain(x: Tensor, depth: int = 4) -> Tensor:
    """Ordinary work between random draws, so that these have a reason to be evicted."""
    for _ in range(depth):
        x = torch.tanh(x * 1.1) + 0.1 * x
    return x


@CORNERS
def every_dropout(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Dropout(0.3),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Dropout2d(0.3),
        nn.RReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.AlphaDropout(0.3),
        nn.FeatureAlphaDropout(0.3),
        nn.Dropout(0.2, inplace=True),
        nn.FractionalMaxPool2d(2, output_ratio=0.7),
        nn.Conv2d(16, 4, 1),
    )
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 3, 20, 20)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


@CORNERS
def every_factory(seed: int) -> Outcome:
    """All drawn first, all read afterwards: each has to survive the others."""
    torch.manual_seed(seed)
    shape = (128, 128)
    drawn = [
        torch.randn(shape),
        torch.rand(shape),
        torch.randint(100, shape),
        torch.randperm(128 * 128).view(shape),
        torch.randn(shape, dtype=torch.float64),
        torch.normal(torch.zeros(shape), torch.ones(shape)),
        torch.bernoulli(torch.full(shape, 0.3)),
        torch.poisson(torch.full(shape, 3.0)),
    ]
    like = [
        function(drawn[0]) for function in (torch.randn_like, torch.rand_like, torch.empty_like)
    ]
    like[2].normal_()
    drawn += like
    read = [chain(tensor.float()) for tensor in drawn]
    return collect([], drawn=drawn, read=read)


@CORNERS
def every_inplace_draw(seed: int) -> Outcome:
    """The same storage drawn over and over, with a value made from each version."""
    torch.manual_seed(seed)
    x = torch.empty(128, 128)
    read = []
    for draw in (
        lambda: x.bernoulli_(0.3),
        lambda: x.bernoulli_(torch.rand(128, 128)),
        lambda: x.normal_(1.0, 2.0),
        lambda: x.uniform_(-1.0, 1.0),
        lambda: x.exponential_(),
        lambda: x.cauchy_(),
        lambda: x.log_normal_(),
        lambda: x.geometric_(0.4),
        lambda: x.random_(0, 10),
        lambda: x[16:64].normal_(),
        lambda: x.t()[3].uniform_(),
    ):
        draw()
        read.append(chain(x, depth=2))
    late = [value.sum(dim=0) for value in reversed(read)]
    return collect([], x=x, read=read, late=late)


@CORNERS
def multinomial(seed: int) -> Outcome:
    torch.manual_seed(seed)
    logits = torch.randn(256, 64).requires_grad_()
    losses, samples = [], []
    for step in range(4):
        probabilities = chain(logits).softmax(dim=-1)
        choice = torch.multinomial(probabilities, 16, replacement=step % 2 == 0)
        soft = F.gumbel_softmax(chain(logits), tau=0.5, hard=step % 2 == 1)
        loss = -(probabilities.gather(1, choice).log().mean() + (soft * probabilities).sum())
        loss.backward()
        losses.append(loss.detach())
        samples.append(choice)
    return collect(losses, samples=samples, gradient=logits.grad)  # type: ignore[arg-type]


@CORNERS
def a_private_generator(seed: int) -> Outcome:
    """Draws from two generators alternate; only one of them is the global one."""
    torch.manual_seed(seed)
    private = torch.Generator().manual_seed(seed + 1)
    values = []
    for _ in range(6):
        values.append(chain(torch.randn(128, 128, generator=private)))
        values.append(chain(torch.randn(128, 128)))
        values.append(torch.empty(128, 128).bernoulli_(0.5, generator=private) * values[-1])
    late = [value.sum(dim=0) for value in reversed(values)]
    return collect([], values=values, late=late, private=private.get_state())


@CORNERS
def a_generator_that_is_gone(seed: int) -> Outcome:
    """The generator dies before what was drawn from it is needed again."""
    torch.manual_seed(seed)

    def draw(number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        return chain(torch.randn(128, 128, generator=generator))

    values = [draw(number) for number in range(10)]
    late = [value.sum(dim=0) for value in reversed(values)]
    return collect([], values=values, late=late)


@CORNERS
def a_generator_that_is_set_and_forked(seed: int) -> Outcome:
    """The global generator is seeded, restored and forked between draws."""
    torch.manual_seed(seed)
    start = torch.get_rng_state()
    values = [chain(torch.randn(128, 128)) for _ in range(3)]
    with torch.random.fork_rng():
        torch.manual_seed(seed + 7)
        values += [chain(F.dropout(value, 0.5)) for value in values[:3]]
    torch.set_rng_state(start)
    values += [chain(torch.rand(128, 128)) for _ in range(3)]
    torch.manual_seed(seed + 9)
    values += [chain(F.dropout(value, 0.2)) for value in values[:3]]
    late = [value.sum(dim=0) for value in reversed(values)]
    return collect([], values=values, late=late)
