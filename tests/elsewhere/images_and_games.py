"""Image networks, generative models and reinforcement learning, in the same manner."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader

from tests.adapter.outcome import Outcome, Registry, collect

IMAGES_AND_GAMES = Registry()


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, 10),
    )


@IMAGES_AND_GAMES
def moving_average_model_with_batch_norm(seed: int) -> Outcome:
    torch.manual_seed(seed)
    data = [(torch.randn(16, 3, 16, 16), torch.randint(10, (16,))) for _ in range(3)]
    model = convolutions()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for images, labels in data:
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        losses.append(loss.detach())
    update_bn(data, ema)
    ema.eval()
    return collect(
        losses, modules=[model, ema], optimizers=[optimizer], logits=ema(data[0][0]).detach()
    )


@IMAGES_AND_GAMES
def mixed_precision_with_a_gradient_scaler(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = convolutions()
    optimizer = Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(torch.randn(16, 3, 16, 16))
            loss = F.cross_entropy(logits, torch.randint(10, (16,)))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer], scale=scaler._scale)


class Squares(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Made where it is asked for: in a worker."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        source = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=source), index % 10


@IMAGES_AND_GAMES
def data_loader_workers_and_mixed_up_images(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = convolutions().to(memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Squares(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
    losses = []
    for _ in range(2):
        for images, labels in loader:
            images = images.to(memory_format=torch.channels_last)
            share, order = torch.rand(()), torch.randperm(len(images))
            mixed = share * images + (1 - share) * images[order]
            logits = model(mixed)
            loss = share * F.cross_entropy(logits, labels)
            loss = loss + (1 - share) * F.cross_entropy(logits, labels[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@IMAGES_AND_GAMES
def adversarial_training_with_a_gradient_penalty(seed: int) -> Outcome:
    """Two networks, two optimizers, and a loss of a gradient."""
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(16, 96), nn.LeakyReLU(0.2), nn.Linear(96, 64), nn.Tanh())
    critic = nn.Sequential(nn.Linear(64, 96), nn.LeakyReLU(0.2, True), nn.Linear(96, 1))
    optimizers = [Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.9)) for net in (generator, critic)]
    losses = []
    for _ in range(2):
        real = torch.randn(256, 64).tanh()
        for _ in range(2):
            optimizers[1].zero_grad()
            fake = generator(torch.randn(256, 16)).detach()
            mix = torch.rand(256, 1)
            between = (mix * real + (1 - mix) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            penalty = (slope.norm(2, dim=1) - 1).square().mean()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
            loss.backward()
            optimizers[1].step()
            losses.append(loss.detach())
        optimizers[0].zero_grad()
        loss = -critic(generator(torch.randn(256, 16))).mean()
        loss.backward()
        optimizers[0].step()
        losses.append(loss.detach())
    return collect(losses, modules=[generator, critic], optimizers=optimizers)


@IMAGES_AND_GAMES
def variational_autoencoder(seed: int) -> Outcome:
    torch.manual_seed(seed)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.SiLU())]
    encoder = nn.Sequential(nn.Linear(196, 64), *hidden, nn.Linear(64, 32))
    decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 196))
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    losses = []
    for _ in range(3):
        images = torch.rand(256, 1, 14, 14)
        mean, log_variance = encoder(images.flatten(1)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        likelihood = F.binary_cross_entropy_with_logits(
            decoder(code), images.view(-1, 196), reduction="sum"
        )
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        loss = likelihood + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        sample = decoder(torch.randn(64, 16)).sigmoid()
    return collect(losses, modules=[encoder, decoder], optimizers=[optimizer], sample=sample)


@IMAGES_AND_GAMES
def style_transfer_with_lbfgs(seed: int) -> Outcome:
    """The image is what is trained; hooks catch features; the closure runs several times a step."""
    torch.manual_seed(seed)
    layers = [layer for _ in range(5) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    features = nn.Sequential(nn.Conv2d(3, 8, 1), *layers).requires_grad_(False)
    caught: dict[str, Tensor] = {}
    for name in ("3", "9"):
        features[int(name)].register_forward_hook(
            lambda _module, _inputs, output, name=name: caught.__setitem__(name, output)
        )

    def gram(name: str) -> Tensor:
        rows = caught[name].flatten(2)
        return rows @ rows.transpose(1, 2) / rows.numel()

    features(torch.rand(1, 3, 32, 32))
    wanted = {name: gram(name).detach() for name in caught}
    image = torch.rand(1, 3, 32, 32).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [image], max_iter=3, history_size=4, line_search_fn="strong_wolfe"
    )
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        features(image.clamp(0, 1))
        loss = sum((F.mse_loss(gram(name), wanted[name]) for name in wanted), torch.zeros(()))
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert image.grad is not None
    return collect(losses, image=image.detach(), gradient=image.grad)


@IMAGES_AND_GAMES
def deep_q_learning_with_a_target_network(seed: int) -> Outcome:
    """A replay buffer of single tensors, `gather`, a target that follows in place."""
    torch.manual_seed(seed)
    online, target = (
        nn.Sequential(
            nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
        )
        for _ in range(2)
    )
    target.load_state_dict(online.state_dict())
    optimizer = AdamW(online.parameters(), lr=1e-3, amsgrad=True)
    memory: deque[tuple[Tensor, Tensor, Tensor, Tensor]] = deque(maxlen=256)
    state = torch.randn(1, 8)
    losses = []
    for step in range(260):
        with torch.no_grad():
            action = (
                online(state).argmax(1, keepdim=True)
                if torch.rand(()).item() > 0.3
                else torch.randint(4, (1, 1))
            )
        after = (state + 0.1 * torch.randn(1, 8)).clamp(-2, 2)
        memory.append((state, action, after, after.sum(1)))
        state = after
        if step < 255:
            continue
        states, actions, afters, rewards = (torch.cat(each) for each in zip(*memory, strict=True))
        chosen = online(states).gather(1, actions)
        with torch.no_grad():
            future = target(afters).max(1).values
        loss = F.smooth_l1_loss(chosen, (future * 0.99 + rewards).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 100)
        optimizer.step()
        weights = target.state_dict()
        for name, value in online.state_dict().items():
            weights[name] = value * 0.05 + weights[name] * 0.95
        target.load_state_dict(weights)
        losses.append(loss.detach())
    return collect(losses, modules=[online, target], optimizers=[optimizer])


@IMAGES_AND_GAMES
def policy_gradient_with_distributions(seed: int) -> Outcome:
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Dropout(0.1), nn.Linear(128, 6))
    optimizer = Adam(policy.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        log_probabilities, rewards, entropies = [], [], []
        states = torch.randn(64, 16)
        for _ in range(8):
            choice = Categorical(logits=policy(states))
            action = choice.sample()
            log_probabilities.append(choice.log_prob(action))
            entropies.append(choice.entropy())
            states = states + 0.1 * F.one_hot(action, 16).float()
            rewards.append(states.mean(1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(log_probabilities) * returns).mean()
        loss = loss - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[policy], optimizers=[optimizer])
