"""The engine on one GPU."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

import pytest
import torch

import coop
from coop.measured_costs import load, path_for
from tests.cuda.programs import MIB, same, value


def values_are_evicted_and_come_back() -> None:
    session = coop.install("128MiB")
    made = [value(n) for n in range(32)]
    assert session.stats().num_evictions > 0
    for n, tensor in enumerate(made):
        assert same(tensor, value(n)), n
    assert session.stats().num_replays > 0
    assert session.stats().peak_bytes <= 128 * MIB


def after_cuda_started_installing_is_refused_with_a_place_to_put_it() -> None:
    torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="before the first use of a CUDA tensor"):
        coop.install("128MiB")


def a_budget_can_be_a_share_of_the_free_memory() -> None:
    session = coop.install("1%")
    total = torch.cuda.mem_get_info()[1]
    assert 0.005 * total < session.stats().budget_bytes <= 0.01 * total


def costs_are_measured_and_kept_for_the_next_run() -> None:
    device = torch.device("cuda", 0)
    with TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        with coop.budget("256MiB"):
            weight = torch.nn.Parameter(torch.ones(2048, 2048, device=device))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for _ in range(4):
                (weight @ weight).sum().backward()
                optimizer.step()
                torch.cuda.synchronize()
        costs = load(path_for(device))
    # A product of this size takes more than 10 us on any GPU, and less than a second.
    assert 1e4 < max(costs.values()) < 1e9, costs


def without_a_device_a_budget_is_the_gpus() -> None:
    with coop.budget("256MiB") as session:
        kept = coop.keep(value())
        assert not coop.evict(kept)
        coop.unkeep(kept)
        assert coop.evict(kept)
        assert session.stats("cuda:0") == session.stats()


def a_budget_is_entered_left_and_entered_again() -> None:
    for _ in range(2):
        with coop.budget("256MiB", device="cuda") as session:
            assert session.stats().held_bytes < 128 * MIB
            made = [value(n) for n in range(12)]
            for tensor in made:
                assert coop.evict(tensor)
        assert all(same(tensor, value(n)) for n, tensor in enumerate(made))
        del made


def torch_s_memory_functions_tell_the_truth() -> None:
    coop.install("256MiB")
    before = torch.cuda.memory_allocated()
    t = value(mib=16)
    assert torch.cuda.memory_allocated() - before == 16 * MIB, torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() >= before + 16 * MIB
    assert torch.cuda.memory_reserved() == 256 * MIB
    del t
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before
    assert "allocated_bytes.all.current" in torch.cuda.memory_stats()
    torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    torch.cuda.mem_get_info()
    segments = torch.cuda.memory_snapshot()
    assert len(segments) == 1
    assert segments[0]["total_size"] == 256 * MIB
    assert sum(b["size"] for b in segments[0]["blocks"]) == 256 * MIB


def dropout_is_the_same_bits_under_eviction() -> None:
    coop.install("192MiB")

    def program():
        torch.manual_seed(7)
        x = value()
        kept = [torch.nn.functional.dropout(x + n, 0.3) for n in range(40)]
        return kept, torch.cuda.get_rng_state()

    kept, state = program()
    sums = [float(k.double().sum()) for k in kept]
    after = torch.cuda.get_rng_state()
    assert torch.equal(state, after)
    del kept
    kept, again = program()
    assert torch.equal(state, again)
    assert [float(k.double().sum()) for k in reversed(kept)] == sums[::-1]


def products_come_back_in_the_precision_they_were_made_in() -> None:
    session = coop.install("512MiB")
    matmul = torch.backends.cuda.matmul
    a, b = (value(n, mib=16).view(1024, 4096) for n in range(2))
    half = [x[:64].bfloat16() for x in (a, b)]

    def products():
        made = []
        for matmul.allow_tf32 in (True, False):
            made += [a @ b.t(), torch.mv(a, b[0]), torch.linalg.inv(a[:, :1024] + 1)]
        for matmul.allow_bf16_reduced_precision_reduction in (False, True):
            made.append(torch.cat([half[0] @ half[1].t()] * 4))
        return made

    made = products()
    expected = [x.cpu() for x in made]
    assert not torch.equal(expected[0], expected[3])
    settings = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction
    assert settings == (False, True)
    for x, y in zip(made, expected, strict=True):
        coop.evict(x)
        assert torch.equal(x.cpu(), y)
    assert session.stats().num_replays >= 4
    assert settings == (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction)


def cudnn_benchmark_works() -> None:
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    coop.install("512MiB")
    model = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    model(torch.randn(8, 16, 64, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()


def out_of_budget_is_recoverable_a_hundred_times() -> None:
    session = coop.install("256MiB")
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    held = []
    for _ in range(100):
        batch = 65536
        while True:
            try:
                model(torch.ones(batch, 1024, device="cuda")).sum().backward()
                break
            except coop.OutOfBudgetError:
                model.zero_grad(set_to_none=True)
                batch //= 2
        model.zero_grad(set_to_none=True)
        held.append(session.stats().held_bytes)
    assert batch < 65536
    assert len(set(held[1:])) == 1, held


def amp_with_a_scaler(budget: str = "") -> None:
    """Trains, in a budget if there is one, and prints what came of it."""
    if budget:
        coop.install(budget)
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(8)
        for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1))
    ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(4096, 1024, device="cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(loss.item())
    print([float(p.double().sum()) for p in model.parameters()])
