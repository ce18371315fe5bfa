"""Compiles a network with TensorRT, or with TensorRT for RTX, which needs no GPU to build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders.verification.limits import Limits
from builders.verification.networks import Network
from builders.verification.trt_layers import LayerRefused, TensorRTLayers
from plugins import trt_log
from trtspec.errors import ConfigError, KernelError


def compile_network(
    trt: Any, network: Network, limits: Limits, architectures: Sequence[int], *, otherwise: str = "install it again"
) -> bytes:
    """The engine; `trt` is the module that builds it, and `otherwise` the way out where it cannot start."""
    log = trt_log.logger(trt)
    builder = trt_log.create(trt, "Builder", log, otherwise)
    definition = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    definition.name = network.name
    layers = TensorRTLayers(definition, trt, limits, architectures[0] if network.launches else None)
    try:
        network.write(layers, limits)
    except LayerRefused:
        raise KernelError(f"{_name(trt)} refused a layer of network {network.name}: {log.heard.why()}") from None
    config = _config(trt, builder, network, limits)
    if not network.launches:
        _target(trt, config, architectures)
    engine = builder.build_serialized_network(definition, config)
    if engine is None:
        raise KernelError(f"{_name(trt)} compiled no engine of network {network.name}: {log.heard.why()}")
    return bytes(engine)


def _config(trt: Any, builder: Any, network: Network, limits: Limits) -> Any:
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.STRICT_NANS)  # rows of logits that are not numbers have to be told
    profile = builder.create_optimization_profile()
    for item in network.inputs:
        ranges = limits.ranges(item)
        shapes = ([size.least for size in ranges], [size.usual for size in ranges], [size.most for size in ranges])
        profile.set_shape(item.name, *shapes)
    if config.add_optimization_profile(profile) < 0:
        sizes = ", ".join(f"{name} {size}" for name, size in limits.dimensions.items())
        raise KernelError(f"{_name(trt)} refuses the sizes of network {network.name}: {sizes}")
    return config


def _target(trt: Any, config: Any, architectures: Sequence[int]) -> None:
    """Which chips an engine is for, where the builder does not take the one it runs on."""
    if not architectures:
        return
    config.num_compute_capabilities = len(architectures)
    for index, architecture in enumerate(architectures):
        capability = getattr(trt.ComputeCapability, f"SM{architecture}", None)
        if capability is None or not config.set_compute_capability(capability, index):
            raise ConfigError(f"--architecture {architecture}: {_name(trt)} does not build for it")


def _name(trt: Any) -> str:
    return f"{trt.__name__} {trt.__version__}"
