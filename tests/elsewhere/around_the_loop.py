"""What stands around a training loop: compilers, profilers, threads, arrays, files."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from queue import Queue

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils import dlpack
from torch.utils.data import DataLoader, TensorDataset

from tests.adapter.outcome import Outcome, Registry, collect

from .training import mlp, train

AROUND_THE_LOOP = Registry()


@AROUND_THE_LOOP
def a_scripted_module(seed: int) -> Outcome:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate = nn.Linear(64, 64), nn.Linear(64, 64)
            self.last = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(self.first(x)) * torch.sigmoid(self.gate(x)) + x
            return self.last(x)

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = torch.jit.script(Gated())
    return train(model, model)


@AROUND_THE_LOOP
def a_traced_module(seed: int) -> Outcome:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = torch.jit.trace(mlp(), torch.randn(4, 64))
    return train(model, model)


@AROUND_THE_LOOP
def compiled_by_an_eager_backend(seed: int) -> Outcome:
    torch.manual_seed(seed)
    torch._dynamo.reset()
    model = mlp()
    return train(model, torch.compile(model, backend="eager"))


@AROUND_THE_LOOP
def predictions_collected_as_arrays(seed: int) -> Outcome:
    """Kept over many batches, then read by NumPy, DLPack and `tolist`."""
    torch.manual_seed(seed)
    model = mlp()
    outcome = train(model, model, steps=2)
    kept = [model(torch.randn(512, 64)).detach().cpu() for _ in range(8)]
    busy = [model(torch.randn(2048, 64)) for _ in range(2)]
    first = np.concatenate([np.asarray(each) for each in kept[:3]])
    second = np.concatenate([each.numpy() for each in kept[3:5]])
    third = dlpack.from_dlpack(kept[5])
    fourth = torch.tensor(kept[6].tolist()) + torch.as_tensor(kept[7])
    tensors = dict(outcome.tensors)
    tensors |= {
        "asarray": torch.from_numpy(first),
        "numpy": torch.from_numpy(second),
        "dlpack": third,
        "tolist": fourth,
        "busy": torch.stack([each.detach().sum() for each in busy]),
    }
    return Outcome(tensors)


@AROUND_THE_LOOP
def a_profiled_loop(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, record_shapes=True, profile_memory=True
    ) as profile:
        outcome = train(model, model)
    counts = {event.key: event.count for event in profile.key_averages()}
    called = torch.tensor([counts["aten::linear"], counts["aten::gelu"], counts["aten::addmm"]])
    return Outcome({**outcome.tensors, "called": called})


@AROUND_THE_LOOP
def threads_that_prefetch_train_and_read(seed: int) -> Outcome:
    """One makes batches, one trains a network of its own, one reads what the first one made."""
    torch.manual_seed(seed)
    batches: Queue[Tensor | None] = Queue(maxsize=2)
    finished: Queue[Tensor | None] = Queue()
    means: list[float] = []
    aside: list[Outcome] = []
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised in the thread that joins
                errors.append(error)
                batches.put(None)

        return run

    def prefetch() -> None:
        source = torch.Generator().manual_seed(seed + 1)
        for _ in range(4):
            batches.put(torch.randn(256, 64, generator=source))
        batches.put(None)

    def read() -> None:
        while (rows := finished.get()) is not None:
            means.append(rows.numpy().sum().item())

    def train_aside() -> None:
        source = torch.Generator().manual_seed(seed + 2)
        net = nn.Linear(64, 64)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=source))
        optimizer = SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            loss = net(torch.randn(256, 64, generator=source)).tanh().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        aside.append(Outcome({f"aside {n}": p.detach() for n, p in net.named_parameters()}))

    model = mlp()
    model_aside = threading.Thread(target=guarded(train_aside))
    # `nn.Linear` draws from the generator that all threads share: not while another thread does.
    model_aside.start()
    model_aside.join()
    threads = [threading.Thread(target=guarded(work)) for work in (prefetch, read)]
    for thread in threads:
        thread.start()
    optimizer = SGD(model.parameters(), lr=0.05)
    losses = []
    try:
        while (rows := batches.get()) is not None:
            logits = model(rows)
            loss = logits.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            finished.put(logits.detach())
    finally:
        finished.put(None)
        while threads[0].is_alive():  # it may wait for room
            if not batches.empty():
                batches.get()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    outcome = collect(losses, modules=[model], means=torch.tensor(means))
    return Outcome({**outcome.tensors, **aside[0].tensors})


@AROUND_THE_LOOP
def a_run_that_is_saved_and_resumed(seed: int) -> Outcome:
    torch.manual_seed(seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        rows = TensorDataset(torch.randn(1024, 32), torch.randint(8, (1024,)))
        yield from DataLoader(rows, batch_size=512)

    def start() -> tuple[nn.Module, AdamW]:
        hidden = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.SiLU())]
        model = nn.Sequential(*hidden, nn.Linear(32, 8))
        return model, AdamW(model.parameters(), lr=1e-3)

    model, optimizer = start()
    losses = []
    file = io.BytesIO()
    for epoch in range(2):
        for rows, labels in batches():
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if epoch == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "losses": losses}, file)
            file.seek(0)
            loaded = torch.load(file)
            model, optimizer = start()
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
            losses = list(loaded["losses"])
    return collect(losses, modules=[model], optimizers=[optimizer])
