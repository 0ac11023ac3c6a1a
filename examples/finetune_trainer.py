"""Fine-tunes a language model with transformers' Trainer. Knows nothing of coop.

    python examples/finetune_trainer.py                                  # a tiny Llama, plain
    coop run --budget 20MiB examples/finetune_trainer.py                   # in less memory
    coop run examples/finetune_trainer.py --model meta-llama/Llama-3.2-1B --length 2048 --batch 8

`coop.integrations.hf.CoopCallback().add_to(trainer)` puts what the budget costs into the log.
"""

import argparse
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer
from transformers import TrainingArguments as Arguments


class Sentences(torch.utils.data.Dataset):
    """Made up: the same few tokens again and again. Put your own here."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.tokens = torch.arange(length * 64).remainder(min(vocabulary, 97)).view(64, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a name of the hub's, or a folder; default: a tiny Llama")
    for name, number in (("steps", 4), ("batch", 4), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes, **heads))
    with tempfile.TemporaryDirectory() as folder:
        arguments = Arguments(
            folder,
            per_device_train_batch_size=args.batch,
            max_steps=args.steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Sentences(args.length, 256))
        trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"step {row['step']}: loss {row['loss']}")


if __name__ == "__main__":
    main()
