"""TensorRT's tensors as PyTorch's, on the same device memory, for plugins that run in Python."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TYPES = {
    "FLOAT": ("<f4", torch.float32),
    "HALF": ("<f2", torch.float16),
    "BF16": ("<i2", torch.bfloat16),
    "INT32": ("<i4", torch.int32),
    "INT64": ("<i8", torch.int64),
}
"""By TensorRT's name: what NumPy calls numbers of that size, and the type. NumPy has no bfloat16, so TensorRT refuses
to hand such a tensor over; PyTorch takes the bits as integers and sees them anew."""


@dataclass(frozen=True)
class DeviceArray:
    """The CUDA array interface, version 3, of contiguous memory."""

    __cuda_array_interface__: dict[str, Any]


def device_array(tensor: Any) -> DeviceArray:
    """Of a `tensorrt.plugin.Tensor`."""
    described = {"shape": tuple(tensor.shape), "typestr": _TYPES[tensor.dtype.name][0], "version": 3, "strides": None}
    return DeviceArray({**described, "data": (tensor.data_ptr, False)})


def as_torch(tensor: Any) -> Tensor:
    """A view of the tensor's memory; nothing is copied."""
    return torch.as_tensor(device_array(tensor), device="cuda").view(_TYPES[tensor.dtype.name][1])


def on_stream(stream: int) -> AbstractContextManager[Any]:
    """Work in this block is queued on TensorRT's stream."""
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))
