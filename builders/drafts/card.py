"""What a drafter's folder says of it beside shape and weights: `proposer.json`, and the same for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative import FLAG, SpeculativeConfig, from_dict
from trtspec.types import Method

NAME = "proposer.json"
README = "README.md"
_NOT_ITS_OWN = frozenset({"acceptance", "model", "typical_threshold", "typical_alpha"})
"""Settings that name files, or that could change the law of the output."""


@dataclass(frozen=True, slots=True)
class Card:
    """A drafter in words and numbers. The last two are for people; nothing reads them."""

    method: Method
    target_sha256: str | None = None
    """Identity of the target that it was trained for, as `builders.identity` finds it; None where no file tells."""
    target_name: str | None = None
    """The target as its authors call it: a name, which proves nothing."""
    speculative: Mapping[str, Any] = field(default_factory=dict)
    """Settings that suit it, under the keys of `--speculative-config`, without the method."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Command, data, time, tokens."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Held-out accuracy, tokens per pass."""

    @property
    def config(self) -> SpeculativeConfig:
        """The settings with defaults for what is not written."""
        return from_dict({**self.speculative, "method": self.method.value})


def write_card(card: Card, directory: Path) -> None:
    """Write `proposer.json` and `README.md`."""
    value = {
        "method": card.method.value,
        "target": {"name": card.target_name, "sha256": card.target_sha256},
        "speculative": dict(card.speculative),
        "training": dict(card.training),
        "measured": dict(card.measured),
    }
    (directory / NAME).write_text(json.dumps(value, indent=2) + "\n")
    (directory / README).write_text(_words(card))


def read_card(directory: Path) -> Card:
    """Read `proposer.json`, and check the settings in it."""
    path = directory / NAME
    try:
        value = json.loads(path.read_text())
        target = value["target"]
        card = Card(
            method=Method(value["method"]),
            target_sha256=target["sha256"],
            target_name=target["name"],
            speculative=value["speculative"],
            training=value["training"],
            measured=value["measured"],
        )
        _check(card, path)
        _ = card.config
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); copy or train the drafter again") from error
    return card


def _check(card: Card, path: Path) -> None:
    """Refuse values of other types, and settings that are not a drafter's to choose."""
    for name, value, kinds in (
        ("target.sha256", card.target_sha256, (str, NoneType)),
        ("target.name", card.target_name, (str, NoneType)),
        ("speculative", card.speculative, (dict,)),
        ("training", card.training, (dict,)),
        ("measured", card.measured, (dict,)),
    ):
        if not isinstance(value, kinds):
            raise CheckpointError(f"{path}: {name} is {value!r:.80}; copy or train the drafter again")
    if refused := sorted(_NOT_ITS_OWN & card.speculative.keys()):
        raise CheckpointError(
            f"{path}: speculative has {refused[0]!r}, which a drafter's card must not set: files and the rule of "
            f"acceptance, on which the law of the output depends, are chosen with {FLAG} alone; remove it there"
        )


def _words(card: Card) -> str:
    sections = {"Settings": card.speculative, "Training": card.training, "Measured": card.measured}
    lines = [
        f"# Drafter for {card.target_name or 'an unnamed target'}, method {card.method.value}",
        "",
        f"Target SHA-256: `{card.target_sha256}`",
        "",
        "Use it with `python -m builders.build --method " + card.method.value + " --draft DIR`.",
    ]
    for title, values in sections.items():
        if values:
            lines += ["", f"## {title}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(value)} |" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")
