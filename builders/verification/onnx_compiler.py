"""Writes a network as an ONNX file, which other compilers and runtimes read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders.verification.limits import Limits
from builders.verification.networks import Network
from builders.verification.onnx_layers import OnnxLayers


def compile_network(onnx: Any, network: Network, limits: Limits, architectures: Sequence[int]) -> bytes:
    layers = OnnxLayers(onnx, limits)
    network.write(layers, limits)
    return bytes(layers.model(network.name).SerializeToString())
