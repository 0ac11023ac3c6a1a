"""The engine on a GPU. Every test is a program of its own: a process has but one allocator."""

from __future__ import annotations

from pathlib import Path

from tests.cuda.cuda_programs import needs_gpu, run

pytestmark = needs_gpu


def test_values_are_evicted_and_come_back() -> None:
    run("""
    session = coop.install("128MiB")
    made = [value(n) for n in range(32)]
    assert session.stats().num_evictions > 0
    for n, tensor in enumerate(made):
        assert same(tensor, value(n)), n
    assert session.stats().num_replays > 0
    assert session.stats().peak_bytes <= 128 * MIB
    """)


def test_after_cuda_started_installing_is_refused_with_a_place_to_put_it() -> None:
    run("""
    torch.ones(1, device="cuda")
    try:
        coop.install("128MiB")
    except RuntimeError as error:
        assert "before the first use of a CUDA tensor" in str(error), error
    else:
        raise AssertionError
    """)


def test_a_budget_can_be_a_share_of_the_free_memory() -> None:
    run("""
    session = coop.install("1%")
    total = torch.cuda.mem_get_info()[1]
    assert 0.005 * total < session.stats().budget_bytes <= 0.01 * total
    """)


def test_without_a_device_a_budget_is_the_gpus_and_costs_are_not_measured_there() -> None:
    run("""
    try:
        coop.budget("256MiB", measure_costs=True).__enter__()
    except ValueError as error:
        assert "measure_costs=True is for the CPU" in str(error), error
    else:
        raise AssertionError
    with coop.budget("256MiB") as session:
        kept = coop.keep(value())
        assert not coop.evict(kept)
        coop.unkeep(kept)
        assert coop.evict(kept)
        assert session.stats("cuda:0") == session.stats()
    """)


def test_a_budget_is_entered_left_and_entered_again() -> None:
    run("""
    for _ in range(2):
        with coop.budget("256MiB", device="cuda") as session:
            assert session.stats().held_bytes < 128 * MIB
            made = [value(n) for n in range(12)]
            for tensor in made:
                assert coop.evict(tensor)
        assert all(same(tensor, value(n)) for n, tensor in enumerate(made))
        del made
    """)


def test_torch_s_memory_functions_tell_the_truth() -> None:
    run("""
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
    assert len(segments) == 1 and segments[0]["total_size"] == 256 * MIB
    assert sum(b["size"] for b in segments[0]["blocks"]) == 256 * MIB
    """)


def test_dropout_is_the_same_bits_under_eviction() -> None:
    run("""
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
    """)


def test_products_come_back_in_the_precision_they_were_made_in() -> None:
    run("""
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
    for x, y in zip(made, expected):
        coop.evict(x)
        assert torch.equal(x.cpu(), y)
    assert session.stats().num_replays >= 4
    assert settings == (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction)
    """)


def test_memory_of_another_stream_is_not_reused_before_it_is_done() -> None:
    run("""
    session = coop.install("512MiB")
    side = torch.cuda.Stream()
    for repeat in range(20):
        source = torch.full((16 * MIB,), float(repeat), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                torch.cuda._sleep(100_000)
            result = source.clone()
        source.record_stream(side)
        del source
        garbage = torch.full((16 * MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert float(result.min()) == float(result.max()) == repeat
        del result, garbage
    """)


STREAMS = """
    session = coop.install("512MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    def overwrite_what_is_free():
        filling = [torch.full((2 * MIB,), -1.0, device="cuda") for _ in range(64)]
    def busy():
        torch.cuda._sleep(100_000_000)  # tens of milliseconds
"""


def test_what_another_stream_reads_stays_until_it_is_done() -> None:
    run(
        STREAMS
        + """
    x = value()
    expected = x.cpu() + 1
    side.wait_stream(main)
    with torch.cuda.stream(side):
        busy()
        y = x + 1
    coop.evict(x)
    overwrite_what_is_free()
    torch.cuda.synchronize()
    assert same(y, expected)
    """
    )


def test_a_trace_knows_what_another_stream_uses(tmp_path: Path) -> None:
    """What the engine keeps for a stream the simulator keeps too."""
    run(
        STREAMS
        + f"""
    path = {str(tmp_path / "streams.jsonl")!r}
    with coop.record(path):
        used, recorded, other = value(0), value(1), value(2)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = used + 1
        recorded.record_stream(side)
        torch.cuda.synchronize()
        evicted = [coop.evict(x) for x in (used, recorded, other)]
    assert evicted == [False, False, True]
    from coop.simulate import simulate
    from coop.trace import read_trace
    assert session.stats().num_evictions == 1
    assert simulate(read_trace(path), 512 * MIB).stats["num_evictions"] == 1
    """
    )


def test_what_another_stream_brings_back_is_there_for_all() -> None:
    run(
        STREAMS
        + """
    x = value()
    expected = (x + 1).cpu(), (x * 2).cpu()  # loads the kernels, too, which would wait for the GPU
    assert coop.evict(x)
    overwrite_what_is_free()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        busy()
        y = x + 1
    z = x * 2  # does not wait for it
    torch.cuda.synchronize()
    assert session.stats().num_replays > 0
    assert same(y, expected[0])
    assert same(z, expected[1])
    """
    )


def test_what_another_stream_overwrites_is_kept_for_replays() -> None:
    run(
        STREAMS
        + """
    root = value().cpu().cuda()
    made = [root + n for n in range(4)]
    expected = [x.cpu() for x in made]
    written = root.cpu() + 1
    assert all(coop.evict(x) for x in made)
    overwrite_what_is_free()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        busy()
        root.add_(1)
    again = [x * 1 for x in made]
    torch.cuda.synchronize()
    assert session.stats().num_replays >= 4
    assert all(same(x, y) for x, y in zip(again, expected)) and same(root, written)
    """
    )


def test_cudnn_benchmark_works() -> None:
    run("""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    coop.install("512MiB")
    model = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    model(torch.randn(8, 16, 64, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    """)


def test_out_of_budget_is_recoverable_a_hundred_times() -> None:
    run("""
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
    """)


def test_amp_with_a_scaler_trains_the_same_bits() -> None:
    program = """
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[m for _ in range(8) for m in
            (torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1))]).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cuda")
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.randn(4096, 1024, device="cuda")).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, [float(p.double().sum()) for p in model.parameters()]
    """
    plain = run(program + "\n    print(train())")
    for budget in ("2GiB", "420MiB"):
        assert run(f"{program}\n    s = coop.install('{budget}')\n    print(train())") == plain, (
            budget
        )
