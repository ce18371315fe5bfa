"""Which features a request uses, and the refusal of those that the engine lacks.

Every field of `GenerateRequest` is a feature by its name, so a field that nobody entered into the table is refused and
never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.capabilities import Support
from trtspec.errors import ModelNotFound, SpeculationRefused, Unsupported
from trtspec.service.checks import shown
from trtspec.service.model import ServedModel
from trtspec.types import GREEDY_TEMPERATURE
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

GROUPS = frozenset({"sampling", "stopping", "logprobs", "speculation", "stream_options"})
"""Messages whose fields are features; any other message is one feature."""
MODES = {spec.SPECULATION_MODE_OFF: "speculation_off", spec.SPECULATION_MODE_ON: "speculation_on"}
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "n": 1}
"""Values of optional fields that ask for nothing."""


def check_model(name: str, model: ServedModel) -> None:
    """Refuse a model that is not served here."""
    if name not in ("", model.info.model):
        asked = shown(name)
        raise ModelNotFound(f"model {asked} is not served here; this server has {model.info.model!r}", model=asked)


def check_features(request: pb.GenerateRequest, model: ServedModel) -> None:
    """Refuse a request that uses a feature this engine lacks, or one the table does not know."""
    for feature, field in used_features(request):
        capability = model.capabilities.get(feature)
        if capability is not None and capability.support is not Support.REFUSED:
            continue
        reason = capability.reason if capability else "this server does not know it"
        if feature == "speculation_on":
            raise SpeculationRefused(f"{field} is ON, but {reason}; ask for DEFAULT or OFF", field=field)
        if feature == "speculation_off":
            raise SpeculationRefused(f"{field} is OFF, but {reason}", field=field)
        engine = f"method {model.info.method.value} on the {model.info.backend} backend"
        raise Unsupported(f"{field} is not supported by {engine}: {reason}", field=field, feature=feature)


def used_features(request: pb.GenerateRequest) -> Iterator[tuple[str, str]]:
    """Name and field path of every feature that a request uses."""
    for descriptor, value in request.ListFields():
        if descriptor.name not in GROUPS:
            yield from _used(descriptor.name, value, "")
            continue
        for inner, inner_value in value.ListFields():
            if (descriptor.name, inner.name) != ("speculation", "mode"):
                yield from _used(inner.name, inner_value, descriptor.name + ".")
            elif inner_value in MODES:
                yield MODES[inner_value], "speculation.mode"


def _used(name: str, value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    greedy = name == "temperature" and value <= GREEDY_TEMPERATURE  # which every engine is able to be
    if not greedy and (name not in _NEUTRAL or value != _NEUTRAL[name]):
        yield name, prefix + name
