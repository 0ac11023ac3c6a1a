"""The benchmark's networks: right in architecture, small where they must be, always the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.models import bert, gpt, spos, treelstm
from benchmarks.models.__main__ import SMALL_BYTES, saved_storages
from benchmarks.models.workload import Workload
from tests.adapter.slices import first, quick_every

NAMES = models.names()
# A transformer and one of another shape every step.
QUICK = ("bert_large", "treelstm")


def quick_and_slow(names: Iterable[str]) -> list[Any]:
    """All; what is not `QUICK` is for `make test-all`."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in QUICK else [slow]) for name in names]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def on_meta(workload: Workload) -> nn.Module:
    with torch.device("meta"):
        return workload.make_model()


def train(workload: Workload, num_steps: int, seed: int) -> list[float]:
    model = workload.make_model(seed)
    optimizer = workload.make_optimizer(model)
    losses = []
    for step in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        loss = workload.loss(model, workload.make_batch(step))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradients(workload: Workload, model: nn.Module) -> list[Tensor | None]:
    torch.manual_seed(1)
    torch.autograd.backward(workload.loss(model, workload.make_batch(0)))
    return [p.grad for p in model.parameters()]


# Architecture


@pytest.mark.parametrize("name", NAMES)
def test_paper_size_has_the_published_number_of_parameters(name: str) -> None:
    workload = models.get(name, "paper")
    assert models.count_parameters(on_meta(workload)) == workload.num_parameters


def test_published_counts_are_the_ones_everybody_quotes() -> None:
    assert {name: models.get(name, "paper").num_parameters for name in NAMES} == {
        "resnet50": 25_557_032,
        "resnet152": 60_192_808,
        "inception_v3": 27_161_264,
        "densenet121": 7_978_856,
        "swin": 28_288_354,
        "bert_large": 336_226_108,
        "unet": 31_037_633,
        # Derived, each in a test of its own below.
        "gpt3": 2_651_553_280,
        "bilstm": 2_315_274,
        "bilstm_fused": 2_315_274,
        "spos": 8_388_176,
        "treelstm": 11_117_573,
    }


def test_bert_without_heads_has_the_published_count() -> None:
    with torch.device("meta"):
        assert models.count_parameters(bert.Bert(bert.LARGE)) == 335_141_888


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (gpt.GPT2_SMALL, 124_439_808),
        (gpt.GPT2_XL, 1_557_611_200),
        # OPT is the same network with 15 more words and 2 more positions.
        (gpt.GPT3_2_7B, 2_651_596_800 - 17 * 2560),
        (gpt.GPT3_6_7B, 6_658_473_984 - 17 * 4096),
    ],
)
def test_gpt_counts_follow_gpt2_and_opt(config: gpt.GptConfig, published: int) -> None:
    h = config.hidden
    derived = config.num_layers * (12 * h * h + 13 * h)
    derived += (config.vocabulary + config.context) * h + 2 * h
    with torch.device("meta"):
        assert models.count_parameters(gpt.Gpt(config)) == derived == published


def test_unet_count_is_the_sum_of_its_convolutions() -> None:
    widths = (64, 128, 256, 512, 1024)
    total = 0
    for before, after in zip((3, *widths), widths, strict=False):
        total += 9 * (before * after + after * after) + 2 * 2 * after
    for width in widths[1:]:
        half = width // 2
        total += 4 * width * half + half  # transposed convolution, with bias
        total += 9 * (width * half + half * half) + 2 * 2 * half
    assert total + 64 + 1 == models.get("unet", "paper").num_parameters


def test_bilstm_count_is_the_sum_of_its_gates() -> None:
    h = 256
    first, second = 2 * 4 * h * (100 + h + 2), 2 * 4 * h * (2 * h + h + 2)
    assert first + second + (2 * h + 1) * 10 == models.get("bilstm", "paper").num_parameters


def test_tree_lstm_composition_has_the_published_count() -> None:
    with torch.device("meta"):
        assert models.count_parameters(treelstm.Composer(300, 150)) == 316_800
    h = 1024
    derived = 2 * (300 + 1) * h + 2 * 5 * (h + 1) * h + 5 * (h + 1)
    assert derived == models.get("treelstm", "paper").num_parameters


def test_spos_count_is_the_sum_of_its_candidates() -> None:
    total, channels = 9 * 3 * 16, 16
    for depth, out in zip((4, 4, 8, 4), (64, 160, 320, 640), strict=True):
        for index in range(depth):
            inputs, middle = (channels // 2 if index else channels), out // 2
            last = middle * (out - inputs)
            for kernel in (3, 5, 7):
                total += inputs * middle + kernel**2 * middle + last
            total += 9 * inputs + inputs * middle + 9 * middle + middle**2 + 9 * middle + last
            if index == 0:
                total += sum(kernel**2 * inputs + inputs**2 for kernel in (3, 5, 7, 3))
            channels = out
    total += 640 * 1024 + 1024 * 1000
    assert total == models.get("spos", "paper").num_parameters


def test_spos_path_published_by_its_authors_has_323_million_multiplications() -> None:
    net = on_meta(models.get("spos", "paper"))
    num_macs = num_parameters = 0

    def count(module: nn.Module, _: object, out: Tensor) -> None:
        nonlocal num_macs, num_parameters
        weight = module.weight
        assert isinstance(weight, Tensor)
        num_macs += out[0].numel() * weight[0].numel()
        num_parameters += weight.numel()
        if isinstance(module, nn.Conv2d):
            num_parameters += 2 * module.out_channels  # the norm after it, affine once retrained

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    path = (2, 1, 0, 1, 2, 0, 2, 0, 2, 0, 2, 3, 0, 0, 0, 0, 3, 2, 3, 3)
    net(torch.empty(2, 3, 224, 224, device="meta"), path)
    assert (num_macs, num_parameters) == (322_918_720, 3_558_464)


@pytest.mark.parametrize("name", quick_every(4, NAMES))
def test_paper_size_gives_a_loss_on_meta(name: str) -> None:
    workload = models.get(name, "paper", batch_size=2)
    loss = workload.loss(on_meta(workload), workload.make_batch(0, "meta"))
    assert loss.shape == ()


@pytest.mark.parametrize("name", NAMES)
def test_tiny_size_has_the_structure_and_depth_of_the_paper_size(name: str) -> None:
    tiny, paper = (on_meta(models.get(name, size)) for size in ("tiny", "paper"))
    assert [type(m) for m in tiny.modules()] == [type(m) for m in paper.modules()]


# Networks of libraries

LIBRARIES = {"tv_resnet50": "torchvision", "hf_gpt2": "transformers", "hf_bert": "transformers"}


@pytest.mark.parametrize("name", first(1, ["lstm", "tv_resnet50", "hf_gpt2", "hf_bert"]))
def test_networks_of_practice_train_repeat_and_can_be_checkpointed(name: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    workload = models.get(name, "tiny")
    assert train(workload, num_steps=2, seed=3) == train(workload, num_steps=2, seed=3)
    expected = gradients(workload, workload.make_model())
    model = workload.make_model()
    workload.checkpoint(model)
    for before, after in zip(expected, gradients(workload, model), strict=True):
        assert (before is None) == (after is None)
        assert before is None or after is None or torch.equal(before, after)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("hf_gpt2", 354_823_168),
        ("hf_bert", 335_174_458),
        ("lstm", 8 * 4 * 1024 * (1024 + 1024 + 2) + (1024 + 1) * 256),
    ],
)
def test_networks_of_practice_have_the_published_number_of_parameters(
    name: str, published: int
) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    assert models.count_parameters(on_meta(models.get(name, "paper"))) == published


@pytest.mark.slow
def test_a_library_is_imported_when_its_network_is_built() -> None:
    program = (
        "import sys; from benchmarks import models\n"
        "for name in models.all_names(): models.get(name, 'paper').can_checkpoint\n"
        "assert not {'torchvision', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Training


@pytest.mark.parametrize("name", quick_and_slow(NAMES))
def test_tiny_size_trains_and_repeats_exactly(name: str) -> None:
    workload = models.get(name, "tiny")
    losses = train(workload, num_steps=2, seed=3)
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses == train(workload, num_steps=2, seed=3)


@pytest.mark.parametrize("name", quick_and_slow(NAMES))
def test_tiny_size_keeps_its_memory_in_activations_the_engine_may_evict(name: str) -> None:
    workload = models.get(name, "tiny")
    model = workload.make_model()
    saved = saved_storages(workload, model, workload.make_batch(0))
    assert sum(num_bytes for num_bytes in saved if num_bytes > SMALL_BYTES) > 0.99 * sum(saved)
    # Twice everything that must stay: parameters, gradients and at most two optimizer states.
    assert sum(saved) > 2 * 4 * models.count_parameters(model) * 4


@pytest.mark.parametrize(
    "name", quick_and_slow(n for n in NAMES if models.get(n, "tiny").block_types)
)
def test_each_block_can_be_checkpointed(name: str) -> None:
    workload = models.get(name, "tiny")
    plain = workload.make_model()
    expected = gradients(workload, plain)
    model = workload.make_model()
    blocks = workload.blocks(model)
    inner = {id(m) for block in blocks for m in block.modules() if m is not block}
    assert not inner & {id(block) for block in blocks}
    workload.checkpoint(model)
    for before, after in zip(expected, gradients(workload, model), strict=True):
        assert (before is None) == (after is None)
        assert before is None or after is None or torch.equal(before, after)


def test_batches_depend_on_the_step_alone() -> None:
    workload = models.get("treelstm", "tiny")
    torch.manual_seed(0)
    first = workload.make_batch(4)
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip(first, workload.make_batch(4), strict=True))
    assert not torch.equal(first[1], workload.make_batch(5)[1])


def test_batches_are_the_same_under_another_default_device() -> None:
    workload = models.get("bert_large", "tiny")
    with torch.device("meta"):
        batch = workload.make_batch(0, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(batch, workload.make_batch(0), strict=True))


def test_spos_draws_a_new_path_every_step_whatever_torch_draws() -> None:
    net, again = spos.Supernet(4, 10), spos.Supernet(4, 10)
    paths = [net.draw_path() for _ in range(5)]
    torch.rand(7)
    assert paths == [again.draw_path() for _ in range(5)]
    assert len({tuple(path) for path in paths}) == 5


def test_random_trees_span_all_leaves_in_order() -> None:
    children = treelstm.random_tree(9, torch.Generator().manual_seed(0)).tolist()
    spans = [[leaf] for leaf in range(9)]
    for left, right in children:
        spans.append(spans[left] + spans[right])
    assert all(span == list(range(span[0], span[-1] + 1)) for span in spans)
    assert spans[-1] == list(range(9))


def test_bilstm_unrolled_computes_what_nn_lstm_computes() -> None:
    unrolled, fused = models.get("bilstm", "tiny"), models.get("bilstm_fused", "tiny")
    batch = unrolled.make_batch(0)
    losses = [w.loss(w.make_model(), batch) for w in (unrolled, fused)]
    torch.testing.assert_close(losses[0], losses[1])


def test_unknown_names_and_sizes_are_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="no network named 'resnet51'; there are: resnet50"):
        models.get("resnet51", "tiny")
    with pytest.raises(ValueError, match="no size named 'huge'"):
        models.get("resnet50", "huge")  # type: ignore[arg-type]
