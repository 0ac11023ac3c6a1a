"""An ordinary script. It asks torch about memory, as scripts do, and knows nothing of coop."""

import torch

torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(0)
layers = [layer for _ in range(12) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(16384, 1024, device="cuda")).float().square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
assert 0 < torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated()
assert torch.cuda.memory_allocated() <= torch.cuda.memory_reserved()
assert "allocated_bytes.all.peak" in torch.cuda.memory_stats()
assert "GPU reserved memory" in torch.cuda.memory_summary()
torch.cuda.reset_peak_memory_stats()
torch.cuda.empty_cache()
free, total = torch.cuda.mem_get_info()
assert 0 < free < total
