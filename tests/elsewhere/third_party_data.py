"""Small data in the formats that third-party scripts read: nothing is downloaded."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path

import numpy as np

WORDS = ["the", "a", "one", "training", "memory", "tensor", "step", "layer", "model", "runs", "is"]


def text(num_words: int) -> str:
    """Sentences of a few common words."""
    chosen = random.Random(0)
    return "".join(
        chosen.choice(WORDS) + (".\n" if chosen.random() < 0.1 else " ") for _ in range(num_words)
    )


def plain_text(folder: Path) -> None:
    """For minGPT: `input.txt`, in which every character of its prompt occurs."""
    (folder / "input.txt").write_text("O God, O God!\n" + text(2000))


def corpus(folder: Path) -> None:
    """For the word language model: three files of words."""
    for name, num_words in (("train", 30000), ("valid", 3000), ("test", 3000)):
        (folder / f"{name}.txt").write_text(text(num_words))


def tokens(folder: Path) -> None:
    """For nanoGPT: tokens as numbers, and what they mean."""
    made = folder / "data/made"
    made.mkdir(parents=True)
    characters = sorted(set(text(2000)))
    numbers = np.array([characters.index(c) for c in text(20000)], dtype=np.uint16)
    for name in ("train", "val"):
        numbers.tofile(made / f"{name}.bin")
    (made / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters)}))


def names(folder: Path) -> None:
    """For makemore: one name a line (its own file has 32,000 of them)."""
    chosen = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    lines = ["".join(chosen.choices(letters, k=chosen.randint(3, 15))) for _ in range(4000)]
    (folder / "names.txt").write_text("\n".join(lines))


def enwik8(folder: Path) -> None:
    """For x-transformers: 95 MB of text."""
    some = text(100_000).encode()
    (folder / "data").mkdir(exist_ok=True)
    with gzip.open(folder / "data/enwik8.gz", "wb", compresslevel=1) as file:
        file.write((some * (95_000_000 // len(some) + 1))[:95_000_000])


def cora(folder: Path) -> None:
    """For the graph networks: papers with words and a subject, and which cites which."""
    chosen = np.random.default_rng(0)
    folder = folder / "cora"
    folder.mkdir()
    num_papers, num_words, num_subjects = 2708, 256, 7
    subjects = chosen.integers(0, num_subjects, num_papers)
    words = (chosen.random((num_papers, num_words)) < 0.05).astype(int)
    words[np.arange(num_papers), subjects] = 1
    rows = (
        f"{i} {' '.join(map(str, row))} subject{subject}\n"
        for i, (row, subject) in enumerate(zip(words, subjects, strict=True))
    )
    (folder / "cora.content").write_text("".join(rows))
    cites = {(int(a), int(b)) for a, b in chosen.integers(0, num_papers, (5400, 2))}
    (folder / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in sorted(cites)))


def stories(folder: Path) -> None:
    """For llama2.c: two files of tokens, one of them to test with."""
    made = folder / "data/tok512"
    made.mkdir(parents=True)
    chosen = np.random.default_rng(0)
    for i in range(2):
        chosen.integers(0, 512, 20_000).astype(np.uint16).tofile(made / f"data{i}.bin")


def image_folders(folder: Path) -> None:
    """For classifiers: a folder of pictures for each class, to train and to validate."""
    from PIL import Image

    chosen = np.random.default_rng(0)
    for part, number in (("train", 32), ("val", 4)):
        for name in ("first", "second"):
            place = folder / "made" / part / name
            place.mkdir(parents=True)
            for i in range(number):
                pixels = chosen.integers(0, 255, (256, 256, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.jpg")


def masks(folder: Path) -> None:
    """For the U-Net: pictures, and what is to be found in them."""
    from PIL import Image

    chosen = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for i in range(4):
        pixels = chosen.integers(0, 255, (192, 192, 3), dtype=np.uint8)
        mask = (pixels[..., 0] > 127).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"data/imgs/{i}.png")
        Image.fromarray(mask).save(folder / f"data/masks/{i}.png")


def hub_model(folder: Path) -> None:
    """For transformers' scripts: text, and a tokenizer of its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (folder / "made.txt").write_text(text(40000))
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "[MASK]", ".", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]"
    )
    made.save_pretrained(folder / "tokenizer")
    for name, config in (
        (
            "gpt2",
            {"model_type": "gpt2", "vocab_size": 8192, "n_layer": 6, "n_embd": 384, "n_head": 6},
        ),
        (
            "bert",
            {
                "model_type": "bert",
                "vocab_size": 8192,
                "hidden_size": 384,
                "num_hidden_layers": 6,
                "num_attention_heads": 6,
                "intermediate_size": 1536,
            },
        ),
    ):
        place = folder / name
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
