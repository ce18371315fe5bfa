"""Where an engine computes: the choice between CPU and GPU, and whether the engine fits there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.executors.embedded.weights import Int8Weight, Weight

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WORKING_MIB = 512
"""For activations, logits and recorded passes, beside weights, keys and values."""
_MIB = 2**20


def choose_device(asked: str, runner: str) -> torch.device:
    """The device for a runner; `auto` is a GPU where the runner can use one. Raises `ConfigError`."""
    if asked == "cuda" and runner != "eager":
        raise ConfigError(
            f"--device is cuda and the engine was built for the runner {runner}, which is for CPUs; use --device cpu, "
            "or build it with --runner eager"
        )
    found = torch.cuda.is_available()
    if asked == "cuda" and not found:
        raise ConfigError(
            f"--device is cuda and PyTorch {torch.__version__} finds no GPU; use --device cpu, or install an NVIDIA "
            "driver and a PyTorch built for CUDA"
        )
    return CUDA if asked == "cuda" or (asked == "auto" and runner == "eager" and found) else CPU


def dense_bytes(weights: object, dtype: torch.dtype) -> int:
    """Memory of all weights, in dataclasses and tuples, as plain tensors of one type; shared ones count once."""
    tensors = {id(item): item for item in _stored(weights)}
    plain = [item.values if isinstance(item, Int8Weight) else item for item in tensors.values()]
    return dtype.itemsize * sum(tensor.numel() for tensor in plain)


def _stored(value: object) -> Iterator[Weight]:
    if isinstance(value, Tensor | Int8Weight):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _stored(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from _stored(getattr(value, item.name))


def check_device(device: torch.device, weight_bytes: int, cache_bytes: int) -> None:
    """Raises `ConfigError` where a GPU lacks the room; a CPU's memory is taken as it is used."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        check_room(weight_bytes, cache_bytes, free)


def check_room(weight_bytes: int, cache_bytes: int, free_bytes: int) -> None:
    """Raises `ConfigError` where weights, cache and work do not fit into a GPU's free memory."""
    weights, cache, free = -(-weight_bytes // _MIB), -(-cache_bytes // _MIB), free_bytes // _MIB
    if weights + cache + WORKING_MIB <= free:
        return
    left = free - weights - WORKING_MIB
    way_out = f"lower --kv-cache-mib to {left}" if left > 0 else "use --device cpu"
    raise ConfigError(
        f"the engine needs {weights + cache + WORKING_MIB} MiB ({weights} for weights, {cache} for keys and values, "
        f"{WORKING_MIB} to work in) and the GPU has {free} MiB free; {way_out}, or free memory there"
    )
