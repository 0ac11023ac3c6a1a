"""Traces of real programs."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coop
from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import read_trace
from tests.adapter.slices import first


def train(steps: int = 2, width: int = 256, rows: int = 512) -> None:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(rows, width)).relu_().square().mean().backward()
        optimizer.step()


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_trace_is_the_same_at_every_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    texts = []
    train()
    for budget in ("64MiB", "7MiB"):
        path = tmp_path / f"{budget}.jsonl"
        with coop.budget(budget) as session, coop.record(path):
            train()
        texts.append(path.read_text())
        assert (session.stats().num_replays > 0) == (budget == "7MiB")
    assert texts[0] == texts[1]


def test_without_a_budget_an_arena_without_a_limit_is_recorded(tmp_path: Path) -> None:
    with coop.record(tmp_path / "t.jsonl.gz", comment="four layers"):
        train()
    trace = read_trace(tmp_path / "t.jsonl.gz")
    assert trace.header.comment == "four layers"
    assert trace.header.device == "cpu"
    assert trace.header.header_bytes == 64
    assert trace.is_priceable
    result = simulate(trace, peak_without_limit(trace) * 2)
    assert result.fitted
    assert len(result.steps) == 2
    assert result.stats["num_replays"] == 0


def test_what_is_read_are_the_entries_that_were_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with coop.record(path, source_lines=True):
        train()
        x = torch.ones(64, 64).exp()
        coop.keep(x)
        coop.unkeep(x)
        coop.evict(x)
        torch.sum(x, 0, out=torch.empty(64))
        torch.sort(x.transpose(0, 1))  # takes temporaries
        x.numpy()[0] = torch.from_numpy(np.ones(64, np.float32)).neg()
    trace = read_trace(path)
    lines = trace.native.json_lines(trace.header.header_bytes, trace.op_names, trace.sources)
    assert lines == path.read_bytes().partition(b"\n")[2]
    for key in ("keep", "unkeep", "evict", "expose", "external", "memory", "overwrites", "source"):
        assert f'"{key}":'.encode() in lines, key


def test_operators_say_what_they_do(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with coop.record(path):
        a = torch.ones(128, 256)
        b = torch.ones(256, 512, dtype=torch.float32)
        c = a @ b
        c.relu_()
        c.zero_()
        del c
    ops = [entry for entry in entries(path) if "op" in entry]
    product, relu, zero = ops[-3:]
    assert product["op"] == "aten::mm"
    assert product["flops"] == 2 * 128 * 256 * 512
    assert product["moved_bytes"] == 4 * (128 * 256 + 256 * 512 + 128 * 512)
    assert product["side"] == "left"
    (made,) = product["outputs"]  # type: ignore[misc]
    assert made[1] == 4 * 128 * 512  # type: ignore[has-type]
    assert relu["writes"] == zero["overwrites"] == [made[0]]  # type: ignore[has-type]
    assert {"free": made[0]} in entries(path)  # type: ignore[has-type]


def test_steps_gradients_and_updates_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with coop.record(path):
        train(steps=1)
    told = entries(path)
    assert [entry["step"] for entry in told if "step" in entry] == ["begin", "end"]
    begin = told.index({"step": "begin"})
    for kind in ("make_root", "leaf"):  # four weights and four biases
        assert sum(kind in entry for entry in told[:begin]) == 8
    updates = [entry for entry in told[begin:] if "writes" in entry]
    assert updates
    assert all(update["make_roots"] is True for update in updates)


def test_source_lines_lead_to_the_users_code(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with coop.record(path, source_lines=True):
        x = torch.ones(64, 64, requires_grad=True)
        y = torch.exp(x)
        y.sum().backward()
    told = {entry["op"]: entry.get("source", "") for entry in entries(path) if "op" in entry}
    line = next(
        n
        for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "torch.exp" in text
    )
    assert told["aten::exp"] == f"{__file__}:{line}"
    assert told["aten::mul.Tensor"] == f"{__file__}:{line} (backward)"


def test_memory_of_others_is_external(tmp_path: Path) -> None:
    outside = torch.ones(64, 1024)
    path = tmp_path / "t.jsonl"
    with coop.record(path):
        inside = outside * 2
        del inside
    (external,) = [entry for entry in entries(path) if "external" in entry]
    assert external["bytes"] == outside.nbytes


def test_an_error_in_the_body_leaves_no_file_and_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with coop.budget("16MiB") as session:
        with pytest.raises(TypeError), coop.record(path):
            torch.ones(1024, 1024).exp("not a number")  # type: ignore[call-arg]
        with pytest.raises(RuntimeError, match="no trace was recorded"):
            session.save_trace(path)
    assert not path.exists()


def test_where_nothing_can_be_written_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="there is no directory"), coop.record(tmp_path / "no" / "t"):
        raise AssertionError("not reached")


def test_without_hardware_a_large_model_is_traced_in_little_memory(tmp_path: Path) -> None:
    def step() -> None:
        model = nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(3)))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss = model.cuda()(torch.randn(4096, 16384, device="cuda")).square().mean()
            loss.backward()
            assert loss.item() == 1.0
            optimizer.step()
            optimizer.zero_grad()

    trace = coop.record_function(step, path=tmp_path / "large.jsonl.gz")
    assert trace.header.estimated
    weights = 3 * 4 * 16384 * (16384 + 1)
    peak = peak_without_limit(trace)
    # Parameters, two moments, gradients, and one temporary of the update at least.
    assert 5 * weights < peak < 7 * weights
    assert "aten::_foreach_add_.Scalar" in trace.op_names
    assert simulate(trace, peak * 2, Options(alignment=512)).fitted


def test_a_recording_without_hardware_repeats(tmp_path: Path) -> None:
    def step() -> None:
        scores = nn.Linear(64, 16)(torch.randn(128, 64))
        nn.functional.cross_entropy(scores, torch.zeros(128, dtype=torch.long)).backward()

    for name in ("first", "second"):
        coop.record_function(step, path=tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_a_trace_has_a_price_on_another_device(tmp_path: Path) -> None:
    from coop.profiles import get_profile

    path = tmp_path / "t.jsonl"
    with coop.record(path):
        a = torch.ones(1024, 1024)
        b = a @ a
        del a, b
    here, there = read_trace(path), read_trace(path).priced(get_profile("h200"))
    profile = get_profile("h200")
    ones = 4 * 1024**2 / profile.bytes_per_ns
    product = max(2 * 1024**3 / profile.flops_per_ns, 12 * 1024**2 / profile.bytes_per_ns)
    budget = 64 * 2**20
    cost = simulate(there, budget).stats["compute_ns"]
    assert cost == round(ones + profile.launch_ns) + round(product + profile.launch_ns)
    assert simulate(here, budget).stats["compute_ns"] > 10 * cost


def test_without_hardware_layers_are_copied_and_numpy_comes_and_goes() -> None:
    """`nn.Transformer` copies its layers; both were errors of torch's fake tensors."""

    def train() -> None:
        layer = torch.nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        out = model(torch.from_numpy(np.zeros((8, 16, 64), dtype=np.float32)))
        out.sum().backward()
        assert out.detach().numpy().shape == (8, 16, 64)
        assert out[0, 0].tolist() == [1.0] * 64

    trace = coop.record_function(train)
    assert trace.num_operators > 100


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_hardware_attention_is_that_of_a_gpu(dtype: torch.dtype, masked: bool) -> None:
    """A CPU has no kernel with dropout: it would keep all of the probabilities."""
    batch, heads, length, width = 4, 8, 1024, 64

    def train() -> None:
        qkv = torch.randn(3, batch, heads, length, width, dtype=dtype, requires_grad=True)
        mask = torch.ones(length, length, dtype=torch.bool) if masked else None
        nn.functional.scaled_dot_product_attention(
            *qkv.unbind(), attn_mask=mask, dropout_p=0.1
        ).sum().backward()

    trace = coop.record_function(train)
    kernel = "flash" if dtype == torch.bfloat16 and not masked else "efficient"
    assert f"aten::_scaled_dot_product_{kernel}_attention" in trace.op_names
    assert f"aten::_scaled_dot_product_{kernel}_attention_backward" in trace.op_names
    probabilities = batch * heads * length * length * dtype.itemsize
    assert peak_without_limit(trace) < probabilities
    assert peak_without_limit(coop.record_function(train, device="cpu")) > probabilities


@pytest.mark.parametrize("reentrant", [False, True])
def test_without_hardware_a_checkpointed_layer_is_recomputed_as_it_was(reentrant: bool) -> None:
    """What `backward` runs pretends a GPU as well: else attention had the kernel of a CPU there."""
    from torch.utils.checkpoint import checkpoint

    def layer(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(4, 256, 8, 16).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return x + attended.transpose(1, 2).reshape(x.shape)

    def train() -> None:
        x = torch.randn(4, 256, 128, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = checkpoint(layer, x, use_reentrant=reentrant)
        y.sum().backward()

    trace = coop.record_function(train)
    kernels = [name for name in trace.op_names if "scaled_dot_product" in name]
    assert kernels == [
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_backward",
    ]


def test_without_hardware_attention_inside_a_module_is_that_of_a_gpu() -> None:
    def train() -> None:
        layer = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
        layer(torch.randn(2, 512, 64)).sum().backward()

    names = coop.record_function(train).op_names
    assert "aten::_scaled_dot_product_efficient_attention" in names
    assert not any("for_cpu" in name for name in names)


def test_without_hardware_numbers_are_read_in_every_way() -> None:
    def train() -> None:
        loss = torch.randn(8).sum()
        assert f"{loss:.4f} {loss:5.1f}" == "1.0000   1.0"
        assert (float(loss), int(loss), round(loss.item(), 2)) == (1.0, 1, 1.0)
        assert np.asarray(torch.zeros(2, dtype=torch.int32)).dtype == np.int32
        assert np.array(loss, dtype=np.float64).dtype == np.float64
        assert np.from_dlpack(torch.randn(3)).tolist() == [1.0, 1.0, 1.0]

    coop.record_function(train)


def test_without_hardware_what_has_a_number_is_copied_and_workers_load_data() -> None:
    """Lightning copies the first, `torch.tensor(0.0)`, for everything that it logs."""

    def train() -> None:
        assert copy.deepcopy(torch.tensor(2.0)).shape == ()
        state = torch.get_rng_state()
        assert copy.deepcopy(state).tolist() == state.tolist()
        assert not torch.equal(torch.ones(2), torch.ones(2))
        data = torch.utils.data.TensorDataset(torch.ones(8, 4))
        loader = torch.utils.data.DataLoader(
            data, 2, num_workers=2, timeout=600, persistent_workers=True
        )
        assert [batch.shape for (batch,) in loader] == [(2, 4)] * 4
        assert len(list(loader)) == 4
        assert loader.num_workers == 2

    coop.record_function(train)


def _networks() -> dict[str, object]:
    t = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 66,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    grouped = {**sizes, "num_key_value_heads": 2}
    two_sided = {
        "vocab_size": 128,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
    }
    image = {"image_size": 32, "patch_size": 8}
    t5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    sound = {"num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 32}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    causal = t.AutoModelForCausalLM.from_config
    return {
        "llama": lambda: causal(t.LlamaConfig(**grouped)),
        "qwen3": lambda: causal(t.Qwen3Config(**grouped, head_dim=16)),
        "gemma2": lambda: causal(t.Gemma2Config(**grouped, head_dim=16)),
        "phi3": lambda: causal(t.Phi3Config(**grouped)),
        "mistral": lambda: causal(t.MistralConfig(**grouped)),
        "gpt_neox": lambda: causal(t.GPTNeoXConfig(**sizes)),
        "olmo2": lambda: causal(t.Olmo2Config(**grouped)),
        "gpt2": lambda: causal(t.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4)),
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**sizes)),
        "roberta": lambda: t.RobertaForMaskedLM(t.RobertaConfig(**sizes)),
        "t5": lambda: t.T5ForConditionalGeneration(
            t.T5Config(**t5, vocab_size=128, decoder_start_token_id=0)
        ),
        "bart": lambda: t.BartForConditionalGeneration(t.BartConfig(**two_sided)),
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**sizes, **image)),
        "whisper": lambda: t.WhisperForConditionalGeneration(
            t.WhisperConfig(**two_sided, **sound, **tokens)
        ),
    }


def _batch(name: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.zeros(2).long()}
    labels = torch.randint(0, 128, (2, 32))
    if name == "whisper":
        return {"input_features": torch.randn(2, 16, 32), "labels": labels}
    return {"input_ids": torch.randint(0, 128, (2, 32)), "labels": labels}


@pytest.mark.parametrize(
    "name",
    first(
        6,
        [
            "llama",
            "bert",
            "t5",
            "vit",
            "whisper",
            "gpt2",
            "qwen3",
            "gemma2",
            "phi3",
            "mistral",
            "gpt_neox",
            "olmo2",
            "roberta",
            "bart",
        ],
    ),
)
def test_without_hardware_networks_with_checkpointed_layers_under_autocast(name: str) -> None:
    make = _networks()[name]

    def train() -> None:
        model = make().cuda().train()  # type: ignore[operator]
        model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**{key: value.cuda() for key, value in _batch(name).items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = coop.record_function(train)
    assert len(simulate(trace, 2**30, Options(alignment=512)).steps) == 2
