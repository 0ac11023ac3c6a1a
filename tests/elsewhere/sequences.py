"""Language models, recurrent networks and speech, as published training loops have them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import SGD, Adam, AdamW

from tests.adapter.outcome import Outcome, Registry, collect

SEQUENCES = Registry()


class Block(nn.Module):
    """Pre-norm causal attention and an MLP, with heads packed into one projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class LanguageModel(nn.Module):
    """Two blocks whose last projection is the embedding."""

    def __init__(self, words: int = 97, length: int = 48, width: int = 48) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits[:, [-1]], logits.new_zeros(())
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@SEQUENCES
def language_model_with_accumulation_and_clipping(seed: int) -> Outcome:
    """Two groups of AdamW, a warm-up, micro-batches, clipping, an estimate, a sample."""
    torch.manual_seed(seed)
    text = torch.randint(97, (2000,))

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - 49, (8,))
        return (
            torch.stack([text[i : i + 48] for i in starts]),
            torch.stack([text[i + 1 : i + 49] for i in starts]),
        )

    model = LanguageModel()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    losses = []
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / 3))
        for _ in range(2):
            _, loss = model(*batch())
            (loss / 2).backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(norm)
    model.eval()
    with torch.no_grad():
        losses.append(torch.stack([model(*batch())[1] for _ in range(2)]).mean())
        tokens = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(4):
            weights = F.softmax(model(tokens)[0][:, -1] / 0.8, dim=-1)
            tokens = torch.cat((tokens, torch.multinomial(weights, 1)), dim=1)
    return collect(losses, modules=[model], optimizers=[optimizer], tokens=tokens)


@SEQUENCES
def hidden_matrices_by_muon_the_rest_by_adamw(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = LanguageModel()
    hidden = [p for p in model.blocks.parameters() if p.dim() == 2]
    ids = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in ids]
    optimizers = [torch.optim.Muon(hidden, lr=1e-2), AdamW(rest, lr=1e-3)]
    losses = []
    for _ in range(2):
        tokens = torch.randint(97, (12, 49))
        _, loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=optimizers)


@SEQUENCES
def truncated_backpropagation_through_time(seed: int) -> Outcome:
    """The state is handed on, detached; the learning rate follows the validation loss."""
    torch.manual_seed(seed)
    embed, rnn, head = nn.Embedding(50, 48), nn.LSTM(48, 64, 2, dropout=0.2), nn.Linear(64, 50)
    model = nn.ModuleList([embed, rnn, head])
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
    text = torch.randint(50, (60, 16))
    losses = []
    for _ in range(2):
        state: tuple[Tensor, Tensor] | None = None
        for start in range(0, 40, 20):
            state = None if state is None else tuple(each.detach() for each in state)
            hidden, state = rnn(embed(text[start : start + 20]), state)
            loss = F.cross_entropy(
                head(hidden).flatten(0, 1), text[start + 1 : start + 21].flatten()
            )
            model.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            losses.append(loss.detach())
        scheduler.step(loss.item())
    return collect(losses, modules=[model])


@SEQUENCES
def packed_sequences_of_many_steps(seed: int) -> Outcome:
    """1,400 steps: the batch sizes alone are more than what is too small to evict."""
    torch.manual_seed(seed)
    lengths = torch.tensor([1400, 900, 3])
    rnn, head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)
    model = nn.ModuleList([rnn, head])
    optimizer = Adam(model.parameters())
    losses = []
    for _ in range(1):
        rows = torch.randn(3, 1400, 8)
        packed = pack_padded_sequence(rows, lengths, batch_first=True)
        hidden, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
        loss = head(hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer], hidden=hidden)


@SEQUENCES
def speech_with_the_ctc_loss(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv1d(20, 64, 5, padding=2), nn.GELU(), nn.Conv1d(64, 64, 5, padding=2), nn.GELU(),
        nn.Conv1d(64, 12, 1),
    )  # fmt: skip
    optimizer = AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4)
    lengths = torch.randint(5, 12, (16,))
    targets = torch.randint(1, 12, (int(lengths.sum()),))
    losses = []
    for _ in range(3):
        logits = model(torch.randn(16, 20, 60)).permute(2, 0, 1)
        loss = F.ctc_loss(logits.log_softmax(2), targets, torch.full((16,), 60), lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer], best=logits.argmax(2))
