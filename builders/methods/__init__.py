"""The methods that `--method` offers. A method is one small file here and one line in METHODS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from builders.methods import ngram, none
from trtspec.errors import ConfigError
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method


@dataclass(frozen=True, slots=True)
class BuildMethod:
    """What the builder must know of a method."""

    summary: str
    """One line for `--help`."""
    plan: Callable[[SpeculativeConfig], str]
    """Refuse what this method cannot use, and say in a line what the engine will do."""


METHODS: Mapping[str, BuildMethod] = {
    "none": BuildMethod(none.SUMMARY, none.plan),
    "ngram": BuildMethod(ngram.SUMMARY, ngram.plan),
}


def resolve(method: str, asked: SpeculativeConfig | None) -> SpeculativeConfig:
    """The configuration of an engine from `--method` and, where given, `--speculative-config`."""
    if asked is None:
        return SpeculativeConfig(Method(method))
    if asked.method.value != method:
        raise ConfigError(
            f"--method is {method!r} and --speculative-config names {asked.method.value!r}; make them the same"
        )
    return asked
