"""Small host data on its way to a device, which goes on computing meanwhile.

PyTorch's plain copies to a GPU wait until all that was queued before them is done: the whole pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a vector on a device."""
    return send(torch.tensor(values, dtype=dtype), device)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU's tensor on a device; the caller writes no more into it. Only pinned memory is copied without waiting."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
