"""Decoders, mixtures of experts, encoders, and encoders with decoders, from transformers."""

from __future__ import annotations

from typing import Any

from benchmarks.models.workload import Workload

from .transformer import Change, Numbers, freeze, low_rank, tokens, transformer

_LLAMA_1B = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
_PYTHIA_1B = {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 8,
    "use_parallel_residual": True,
}
_MISTRAL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
}


def _decoder(
    name: str,
    model: str,
    batch: int,
    length: int,
    config: dict[str, Any],
    change: Change | None = None,
    *blocks: str,
) -> Workload:
    config = {"max_position_embeddings": length, "use_cache": False} | config
    arguments = tokens(batch, length, config["vocab_size"])
    return transformer(name, model, arguments, config, change=change, blocks=blocks)


def llama_1b() -> Workload:
    return _decoder("llama_1b", "LlamaForCausalLM", 4, 2048, _LLAMA_1B)


def llama_long() -> Workload:
    """One long sequence."""
    config = _LLAMA_1B | {"num_hidden_layers": 12}
    return _decoder("llama_long", "LlamaForCausalLM", 1, 16384, config)


def llama_vocabulary() -> Workload:
    """Short sequences and many words: Llama 3.2's width and vocabulary, tied."""
    config = _LLAMA_1B | {"vocab_size": 128256, "intermediate_size": 8192}
    config |= {"num_hidden_layers": 16, "num_key_value_heads": 8, "tie_word_embeddings": True}
    return _decoder("llama_vocabulary", "LlamaForCausalLM", 16, 256, config)


def llama_lora() -> Workload:
    config = _LLAMA_1B | {"num_hidden_layers": 16}
    change = low_rank(16, "q_proj", "k_proj", "v_proj", "o_proj")
    block = "LlamaDecoderLayer"
    return _decoder("llama_lora", "LlamaForCausalLM", 4, 2048, config, change, block)


def qwen3() -> Workload:
    """Qwen3 0.6B with 20 of its 28 layers."""
    config = {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    }
    return _decoder("qwen3", "Qwen3ForCausalLM", 4, 2048, config)


def gemma2() -> Workload:
    """Gemma 2 2B with 16 of its 26 layers."""
    config = {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    }
    return _decoder("gemma2", "Gemma2ForCausalLM", 2, 2048, config)


def phi3() -> Workload:
    """Phi-3 mini with 16 of its 32 layers."""
    config = {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "pad_token_id": 0,
    }
    return _decoder("phi3", "Phi3ForCausalLM", 4, 2048, config)


def gpt2_medium() -> Workload:
    config = {"n_embd": 1024, "n_layer": 24, "n_head": 16, "use_cache": False}
    arguments = tokens(16, 1024, 50257)
    return transformer("gpt2_medium", "GPT2LMHeadModel", arguments, config, precision="autocast")


def mistral() -> Workload:
    """Mistral 7B with 6 of its 32 layers."""
    return _decoder("mistral", "MistralForCausalLM", 4, 4096, _MISTRAL)


def mistral_lora() -> Workload:
    """LoRA on all linear maps, short sequences."""
    change = low_rank(
        8, "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    )
    config = _MISTRAL | {"num_hidden_layers": 12}
    block = "MistralDecoderLayer"
    return _decoder("mistral_lora", "MistralForCausalLM", 8, 512, config, change, block)


def pythia_1b() -> Workload:
    return _decoder("pythia_1b", "GPTNeoXForCausalLM", 8, 2048, _PYTHIA_1B)


def pythia_frozen() -> Workload:
    """The words and the lower half of the layers are not trained."""
    frozen = [f"gpt_neox.layers.{layer}." for layer in range(8)]
    change = freeze("gpt_neox.embed_in", *frozen)
    model, block = "GPTNeoXForCausalLM", "GPTNeoXLayer"
    return _decoder("pythia_frozen", model, 8, 2048, _PYTHIA_1B, change, block)


def olmo2() -> Workload:
    """OLMo 2 1B: norms behind attention and feed-forward network."""
    config = {
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
    }
    return _decoder("olmo2", "Olmo2ForCausalLM", 4, 2048, config)


def falcon() -> Workload:
    """Falcon: one key/value head, attention beside the feed-forward network."""
    config = {
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 6,
        "num_attention_heads": 71,
        "bias": False,
    }
    return _decoder("falcon", "FalconForCausalLM", 4, 2048, config)


def bloom() -> Workload:
    """BLOOM 560M: ALiBi, many words."""
    config = {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 16, "n_head": 16}
    config |= {"hidden_dropout": 0.1, "attention_dropout": 0.1, "use_cache": False}
    arguments = tokens(4, 1024, 250000)
    return transformer("bloom", "BloomForCausalLM", arguments, config, precision="autocast")


def mixtral() -> Workload:
    """Mixtral's eight experts, two for each token, at a quarter of its width."""
    config = {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "experts_implementation": "grouped_mm",
    }
    return _decoder("mixtral", "MixtralForCausalLM", 8, 2048, config)


def _encoder(name: str, model: str, batch: int, length: int, config: dict[str, Any]) -> Workload:
    arguments = tokens(batch, length, config["vocab_size"])
    return transformer(name, model, arguments, config, precision="autocast")


def modernbert() -> Workload:
    """ModernBERT base: rotary, gated, two of three layers see 128 tokens."""
    config = {
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "pad_token_id": 0,
        "reference_compile": False,
    }
    return _encoder("modernbert", "ModernBertForMaskedLM", 16, 1024, config)


def deberta() -> Workload:
    """DeBERTa v2: attention by position apart from content, probabilities kept."""
    config = {
        "vocab_size": 128100,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "relative_attention": True,
        "position_buckets": 256,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    }
    return _encoder("deberta", "DebertaV2ForMaskedLM", 16, 512, config)


def t5_base() -> Workload:
    config = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}
    config |= {"vocab_size": 32128, "decoder_start_token_id": 0, "use_cache": False}
    arguments = {"input_ids": Numbers((32, 512), 32000), "labels": Numbers((32, 128), 32000)}
    model = "T5ForConditionalGeneration"
    return transformer("t5_base", model, arguments, config, precision="autocast")


def bart_large() -> Workload:
    config = {
        "vocab_size": 50265,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "use_cache": False,
    }
    arguments = {"input_ids": Numbers((16, 768), 50000), "labels": Numbers((16, 128), 50000)}
    model = "BartForConditionalGeneration"
    return transformer("bart_large", model, arguments, config, precision="autocast")


def mamba2() -> Workload:
    """Mamba 2 130M by the operators of torch, in chunks of 128."""
    config = {
        "vocab_size": 50288,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "state_size": 64,
        "num_heads": 24,
        "head_dim": 64,
        "n_groups": 1,
        "chunk_size": 128,
        "use_cache": False,
    }
    return transformer("mamba2", "Mamba2ForCausalLM", tokens(4, 1024, 50000), config)


TUNED = {
    "gpt": (gpt2_medium,),
    "llama": (llama_1b, llama_long, llama_vocabulary, llama_lora),
    "qwen": (qwen3,),
    "gemma": (gemma2,),
    "phi": (phi3,),
    "t5": (t5_base,),
}
JUDGED = {
    "mistral": (mistral, mistral_lora),
    "gpt-neox": (pythia_1b, pythia_frozen),
    "olmo": (olmo2,),
    "falcon": (falcon,),
    "bloom": (bloom,),
    "mixtral": (mixtral,),
    "modernbert": (modernbert,),
    "deberta": (deberta,),
    "bart": (bart_large,),
    "mamba": (mamba2,),
}
