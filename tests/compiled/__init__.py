"""torch.compile inside a budget."""
