"""A Hugging Face `Trainer` inside a budget; its log lines say what that costs.

pip install transformers accelerate
python examples/hf_trainer.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from coop.integrations.hf import CoopCallback

CONFIG = GPT2Config(
    n_layer=4, n_head=4, n_embd=128, n_positions=128, vocab_size=512, bos_token_id=0, eos_token_id=0
)


def main(budget: str = "48MiB") -> Trainer:
    """Trains a small GPT-2 on random words."""
    words = torch.randint(512, (64, 128), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in words]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=6,
            logging_steps=2,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        in_budget = CoopCallback(budget, device="cpu")
        model = GPT2LMHeadModel(CONFIG)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[in_budget])
        trainer.train()
    return trainer


if __name__ == "__main__":
    main()
