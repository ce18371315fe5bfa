"""Which drafter the flags of a build name. Light: PyTorch is loaded only for a method that has a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.methods import METHODS
from trtspec.errors import ConfigError

if TYPE_CHECKING:
    from builders.drafts.source import OpenedDraft


def asked_draft(
    method: str, flag: Path | None, config: Mapping[str, Any] | None, target: Path | None, others: Mapping[str, object]
) -> OpenedDraft | None:
    """The drafter that is named by flag or in the speculative configuration, or found; None for methods without.

    `others` are flags, with their values, that only methods with a drafter have.
    """
    named = (config or {}).get("model")
    if METHODS[method].drafter is None:
        for name, given in {"--draft": flag, **others}.items():
            if given:
                raise ConfigError(f"{name} is for methods that have a drafter; --method {method} has none")
        return None
    if flag is not None and named is not None and flag != Path(named):
        raise ConfigError(f"--draft is {flag} and --speculative-config names the model {named}; give one")
    from builders.drafts.choose import choose_draft

    return choose_draft(method, flag if named is None else Path(named), target)
