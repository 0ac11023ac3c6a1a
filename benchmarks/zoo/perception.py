"""Networks that see and hear, from transformers."""

from __future__ import annotations

from typing import Any

from benchmarks.models.workload import Workload

from .transformer import Arguments, Numbers, images, transformer


def _autocast(
    name: str, model: str, arguments: Arguments, config: dict[str, Any], *blocks: str
) -> Workload:
    return transformer(name, model, arguments, config, precision="autocast", blocks=blocks)


def vit_large() -> Workload:
    config = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_labels": 1000,
        "hidden_dropout_prob": 0.1,
    }
    return _autocast("vit_large", "ViTForImageClassification", images(64, 224), config)


def efficientnet_b4() -> Workload:
    config = {
        "image_size": 380,
        "width_coefficient": 1.4,
        "depth_coefficient": 1.8,
        "hidden_dim": 1792,
        "dropout_rate": 0.4,
        "drop_connect_rate": 0.0,
        "num_labels": 1000,
    }
    model, block = "EfficientNetForImageClassification", "EfficientNetBlock"
    return _autocast("efficientnet_b4", model, images(32, 380), config, block)


def whisper_small() -> Workload:
    config = {
        "d_model": 768,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 12,
        "decoder_attention_heads": 12,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
        "vocab_size": 51865,
        "use_cache": False,
    }
    arguments = {
        "input_features": Numbers((16, 80, 3000)),
        "labels": Numbers((16, 448), 50000),
    }
    return _autocast("whisper_small", "WhisperForConditionalGeneration", arguments, config)


def dinov2_large() -> Workload:
    config = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_labels": 1000,
        "image_size": 224,
        "patch_size": 14,
    }
    return _autocast("dinov2_large", "Dinov2ForImageClassification", images(48, 224), config)


def segformer_b2() -> Workload:
    config = {
        "depths": [3, 4, 6, 3],
        "hidden_sizes": [64, 128, 320, 512],
        "decoder_hidden_size": 768,
        "num_labels": 150,
        "drop_path_rate": 0.0,
    }
    arguments = {
        "pixel_values": Numbers((8, 3, 512, 512)),
        "labels": Numbers((8, 512, 512), 150),
    }
    model, block = "SegformerForSemanticSegmentation", "SegformerLayer"
    return _autocast("segformer_b2", model, arguments, config, block)


def convnext_base() -> Workload:
    config = {
        "depths": [3, 3, 27, 3],
        "hidden_sizes": [128, 256, 512, 1024],
        "num_labels": 1000,
        "drop_path_rate": 0.0,
    }
    model, block = "ConvNextForImageClassification", "ConvNextLayer"
    return _autocast("convnext_base", model, images(64, 224), config, block)


def regnet_y() -> Workload:
    """RegNetY 8GF."""
    config = {
        "depths": [2, 4, 10, 1],
        "hidden_sizes": [224, 448, 896, 2016],
        "groups_width": 56,
        "layer_type": "y",
        "num_labels": 1000,
    }
    model, block = "RegNetForImageClassification", "RegNetYLayer"
    return _autocast("regnet_y", model, images(128, 224), config, block)


def mobilenet_v2() -> Workload:
    model, block = "MobileNetV2ForImageClassification", "MobileNetV2InvertedResidual"
    config = {"depth_multiplier": 1.4, "num_labels": 1000}
    return _autocast("mobilenet_v2", model, images(128, 224), config, block)


def wav2vec2() -> Workload:
    """wav2vec 2.0 base, ten seconds of sound."""
    config = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "apply_spec_augment": False,
        "layerdrop": 0.0,
        "num_labels": 32,
    }
    arguments = {"input_values": Numbers((16, 160000)), "labels": Numbers((16,), 32)}
    return _autocast("wav2vec2", "Wav2Vec2ForSequenceClassification", arguments, config)


def clip() -> Workload:
    """CLIP ViT-B/16: two towers and their products."""
    config = {
        "text_config": {"hidden_size": 512, "num_hidden_layers": 12, "eos_token_id": 2},
        "vision_config": {
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "patch_size": 16,
        },
    }
    arguments = {
        "input_ids": Numbers((128, 77), 49000),
        "pixel_values": Numbers((128, 3, 224, 224)),
        "return_loss": Numbers((1,), 2),
    }
    return _autocast("clip", "CLIPModel", arguments, config)


TUNED = {
    "vit": (vit_large,),
    "efficientnet": (efficientnet_b4,),
    "whisper": (whisper_small,),
}
JUDGED = {
    "dinov2": (dinov2_large,),
    "segformer": (segformer_b2,),
    "convnext": (convnext_base,),
    "regnet": (regnet_y,),
    "mobilenet": (mobilenet_v2,),
    "wav2vec2": (wav2vec2,),
    "clip": (clip,),
}
