"""The settings of `trtspec serve`, in groups: tables of its file, and headings of its help."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec import speculative
from trtspec.cli.options import given
from trtspec.config import EngineOptions
from trtspec.declared import groups
from trtspec.service.options import AdmissionOptions, SecurityOptions, ServeOptions, TelemetryOptions, TimeOptions
from trtspec.settings import Settings, collect, config_file


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculation, in the shape that vLLM users know."""

    speculative_config: str = field(
        default="",
        metadata={
            "help": 'JSON or @FILE, such as {"method": "ngram"}; changes a built engine within what it was built for'
        },
    )


GROUPS: Mapping[str, type] = {
    "server": ServeOptions,
    "admission": AdmissionOptions,
    "time": TimeOptions,
    "security": SecurityOptions,
    "telemetry": TelemetryOptions,
    "engine": EngineOptions,
    "speculation": SpeculationSettings,
}


def settings_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """What was set on the command line, in the environment, and in the file that one of them names."""
    flags = {name: value for kind in GROUPS.values() for name, value in given(kind, options).items()}
    return collect(GROUPS, flags, environment, config_file(options.config, environment))


def serve_options_of(settings: Settings) -> ServeOptions:
    """The options of the server, all groups together."""
    inner: dict[str, Any] = {name: settings.build(kind) for name, kind in groups(ServeOptions)}
    return settings.build(ServeOptions, **inner)


def speculative_of(settings: Settings) -> Mapping[str, Any] | None:
    """The speculative configuration; None where nobody gave any."""
    text = settings.build(SpeculationSettings).speculative_config
    return speculative.parse(text) if text else None
