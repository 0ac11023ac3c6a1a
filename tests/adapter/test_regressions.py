"""One small program for every bug that was found, named after it.

Programs run plain and with everything evicted after every operator, and leave the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import coop
from tests.bits import bits

KIB = 2**10
MIB = 2**20

pytestmark = pytest.mark.debug_build

Program = Callable[[], list[Tensor]]


def value() -> Tensor:
    """16 KiB that can be recomputed."""
    return torch.arange(4096, dtype=torch.float32).view(64, 64).sin()


def batch_norm_into_given_results() -> list[Tensor]:
    """Found by the operator database: the results were not taken as written."""
    x, mean, var = value(), torch.zeros(64), torch.ones(64)
    results = torch.ones(64, 64), torch.ones(64), torch.ones(64)
    torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, out=results)
    return [*results, mean, var]


def written_through_numpy() -> list[Tensor]:
    """Found by random programs: NumPy's writes were lost with the tensor, and seen by replays."""
    x = value()
    before = x * 2
    if coop.current_session() is not None:
        coop.materialize(x)
    x.numpy()[...] = 5
    after = x * 3
    x.add_(1)
    return [before, after, x * 4]


def products_after_their_precision_changed() -> list[Tensor]:
    """With the precision of one kind of device set, every product was an error."""
    products = torch.backends.mkldnn.matmul
    live = products.fp32_precision
    try:
        products.fp32_precision = "bf16"
        rounded = value() @ value()
        products.fp32_precision = "ieee"
        exact = value() @ value()
        both = torch.stack([rounded, exact])
        assert products.fp32_precision == "ieee"
    finally:
        products.fp32_precision = live
    return [rounded, exact, both]


OUTSIDE = value()


def of_the_outside_written_through_numpy() -> list[Tensor]:
    """The same, of memory that is not the arena's."""
    OUTSIDE.copy_(value())
    before = OUTSIDE * 2
    OUTSIDE.numpy()[...] = 5
    after = OUTSIDE * 3
    OUTSIDE.numpy()[...] = 6
    return [before, after, OUTSIDE * 4]


def written_by_an_operator_that_raises() -> list[Tensor]:
    """Found by random programs: the first tensor was given back as if it had not been written."""
    x, y = value(), torch.arange(4096)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch._foreach_mul_([x, y], [1.5, 0.5])
    return [x, y, x + 1]


def empty_into_a_given_result() -> list[Tensor]:
    """`torch.empty(out=x)` leaves x as it is; a replay made it anything."""
    x = value()
    torch.empty((64, 64), out=x)
    return [x, x + 1]


def overwritten_through_overlapping_elements() -> list[Tensor]:
    """As many elements as the storage has, but not all of it: the rest must come back too."""
    x = value().view(-1)
    x.as_strided((2, 2048), (1, 1)).copy_(torch.ones(2, 2048))
    return [x, x + 1]


def into_a_given_result_that_is_a_little_too_small() -> list[Tensor]:
    """Found by random programs: a block is larger than its storage, so a replay did not resize."""
    x, result = value().view(-1)[:255], torch.zeros(2 * 255 - 1)
    result.resize_(500)
    torch.cat([x, x], out=result)
    return [result, result + 1]


def lazily_cloned() -> list[Tensor]:
    """The storage's memory gets another owner: evicting it was a broken invariant."""
    x = value()
    y = torch._lazy_clone(x)
    y.add_(1)
    x.mul_(2)
    return [x, y, x + y]


def a_root_written_while_it_is_read_under_another_name() -> list[Tensor]:
    """Found by random programs: a replay read the one from another copy than it wrote."""
    base = torch.tensor([[float(i * j % 17) for i in range(64)] for j in range(64)])
    overlapping = base.unfold(0, 2, 1)
    result = overlapping.detach()
    torch.cat([overlapping, torch.ones(1).expand(overlapping.shape)], out=result)
    return [base, overlapping, result, result + 1]


def products_with_compressed_matrices() -> list[Tensor]:
    """Under ASan: the sizes of what they are made of were read after torch had let go of it."""
    dense = value()
    sparse = dense.relu().to_sparse_csr()
    return [sparse @ dense, dense @ sparse]


PROGRAMS: list[Program] = [
    a_root_written_while_it_is_read_under_another_name,
    batch_norm_into_given_results,
    products_after_their_precision_changed,
    written_through_numpy,
    of_the_outside_written_through_numpy,
    written_by_an_operator_that_raises,
    empty_into_a_given_result,
    overwritten_through_overlapping_elements,
    into_a_given_result_that_is_a_little_too_small,
    lazily_cloned,
    products_with_compressed_matrices,
]


def assert_same_bits(expected: list[Tensor], actual: list[Tensor]) -> None:
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        assert torch.equal(bits(left), bits(right)), f"tensor {number}"


@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "copy on write"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore:coop")
def test_it_stays_fixed(program: Program, inplace: bool) -> None:
    expected = program()
    with coop.budget(4 * MIB, paranoid=True, small_bytes=0, inplace=inplace) as session:
        actual = program()
        assert session._engine.is_valid()
    assert_same_bits(expected, actual)


@pytest.mark.parametrize(
    "read",
    [lambda x: x.tolist(), copy.deepcopy, lambda x: x.share_memory_()],
    ids=["tolist", "deepcopy", "share_memory_"],
)
def test_reading_an_evicted_tensor_without_an_operator_brings_it_back(
    read: Callable[[Tensor], Tensor | list[list[float]]],
) -> None:
    """It raised."""
    with coop.budget(4 * MIB):
        x = value()
        assert coop.evict(x)
        seen = read(x)
    assert torch.equal(torch.as_tensor(seen), value())


def test_a_numpy_array_still_shares_its_memory_after_a_budget_left_in_need() -> None:
    """What was resident was copied out of the arena to make room, kept or not."""
    with coop.budget(96 * KIB, small_bytes=0):
        shared, kept, evicted, resident = value(), coop.keep(value()), value(), value()
        address = kept.untyped_storage().data_ptr()
        array = shared.numpy()
        assert coop.evict(evicted)
        filling = [value() for _ in range(4)]
        assert sum(map(coop.is_resident, filling)) < 4
    array[...] = 3
    assert shared[0, 0] == 3
    assert kept.untyped_storage().data_ptr() == address
    assert torch.equal(evicted, value())
    assert all(torch.equal(one, value()) for one in [resident, *filling])


def test_a_random_operator_that_does_not_fit_draws_nothing() -> None:
    """A dropout that is one operator draws its mask before its result is placed."""
    with coop.budget(1 * MIB, small_bytes=0) as session:
        x = value()
        state = torch.get_rng_state()
        for failing in range(1, 8):
            session._engine.fail_placement(failing)
            try:
                torch.native_dropout(x, 0.5, True)
                break
            except coop.OutOfBudgetError:
                session._engine.fail_placement(0)
                assert torch.equal(torch.get_rng_state(), state)
        session._engine.fail_placement(0)
        assert failing > 2  # the mask was drawn by then


def test_an_allocation_outside_of_any_operator_is_out_of_budget_too() -> None:
    """The state of a generator is made without an operator: it was a plain OutOfMemoryError."""
    with coop.budget(1 * MIB, small_bytes=0) as session:
        session._engine.fail_placement(1)
        with pytest.raises(coop.OutOfBudgetError, match="outside of any operator"):
            torch.get_rng_state()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_tensor_whose_resizing_failed_halfway_is_refused_and_not_read_beyond_its_end() -> None:
    """Found by random programs: torch resizes `out=` of a conjugated tensor without an operator,
    which an evicted one refuses. It has its new sizes then, and its old memory: the next operator
    crashed."""
    with coop.budget(1 * MIB, paranoid=True, small_bytes=0) as session:
        x = value().view(-1)
        left, result = torch.complex(x, x).conj(), torch.complex(x, x).conj()
        with pytest.raises(RuntimeError, match=r"coop\.materialize"):
            torch.cat([left, left], out=result)
        assert result.shape == (8192,)
        assert result.untyped_storage().nbytes() == 4096 * 8
        for use in (torch.sin, lambda t: t + 1, lambda t: torch.cat([left, left], out=t)):
            with pytest.raises(RuntimeError, match=r"needs 65536 bytes, .* has 32768: .* anew"):
                use(result)
        coop.keep(left)
        again = torch.complex(x, x).conj()
        torch.cat([left, left], out=coop.keep(again))
        assert session._engine.is_valid()
    assert torch.equal(again, torch.cat([left, left]))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_result_that_does_not_fit_keeps_its_sizes_and_its_content() -> None:
    """Found by random programs: torch gives `out=` its new sizes before its new memory. The next
    operator, or a second attempt at this one, wrote beyond its end."""
    with coop.budget(1 * MIB, small_bytes=0) as session:
        x = torch.ones(100_000)
        result = value()
        with pytest.raises(coop.OutOfBudgetError):
            torch.cat([x, x], out=result)
        assert session._engine.is_valid()
        assert result.shape == (64, 64)
        result += 1
    assert torch.equal(result, value() + 1)


@pytest.mark.parametrize("empty", [False, True])
def test_several_given_results_are_written_and_recomputable(empty: bool) -> None:
    """Found by the operator database: torch 2.11 cannot call such an operator boxed."""
    x = torch.randn(64, 64)
    expected = [*x.kthvalue(3, dim=0), *x.sort(dim=1, descending=True)]
    with coop.budget(1 * MIB, paranoid=True, small_bytes=0) as session:
        y = x.clone()
        made = [t.new_empty(0) if empty else torch.full_like(t, 7) for t in expected]
        kept = [t + t for t in made]
        torch.kthvalue(y, 3, dim=0, out=(made[0], made[1]))
        torch.sort(y, dim=1, descending=True, out=(made[2], made[3]))
        after = [t + t for t in made]
        assert session.stats().num_replays > 0
    for result, twice, before, wanted in zip(made, after, kept, expected, strict=True):
        assert torch.equal(result, wanted)
        assert torch.equal(twice, wanted + wanted)
        assert torch.equal(before, torch.full_like(before, 14))
