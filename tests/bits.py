"""The bytes of a tensor's elements."""

from __future__ import annotations

import torch
from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    """All elements in order, as bytes; whatever the strides are."""
    elements = tensor.detach().resolve_conj().resolve_neg().flatten()
    return torch.empty(len(elements), dtype=elements.dtype).copy_(elements).view(torch.uint8)
