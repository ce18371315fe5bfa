"""The format of vllm-project/speculators: one `config.json` for several kinds of drafters.

`speculators_config` names the algorithm, the verifier and the `speculative_tokens` of the default proposal method;
`transformer_layer_config` is the layer's config (`config.py`). EAGLE: the fusion is `fusion_fc`, the layer
`transformer` (`eagle_converter.py`, releases up to 0.3). EAGLE-3: the names of SafeAILab's, the layer being
`layers.0`; `eagle_aux_hidden_state_layer_ids` may name other layers of the target (`models/eagle3/config.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from builders.checkpoint import Checkpoint
from builders.drafts.card import Card
from builders.drafts.eagle import eagle_source
from builders.drafts.eagle3 import Variant, eagle3_source
from builders.drafts.source import DraftSource, OpenedDraft, check_depth
from builders.model_config import size
from trtspec.errors import CheckpointError
from trtspec.types import Method

KIND_KEY = "speculators_model_type"
_Read = Callable[[Path, Mapping[str, Any], Mapping[str, Any], Checkpoint], DraftSource]


def open_speculators(path: Path, raw: Mapping[str, Any]) -> OpenedDraft:
    """Read algorithm, verifier and settings."""
    kind = raw[KIND_KEY]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CheckpointError(
            f"--draft {path}: {KIND_KEY} is {kind!r:.80}; supported of this format are {', '.join(_KINDS)}"
        )
    layer = raw.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise CheckpointError(f"--draft {path}: config.json has no transformer_layer_config; copy the drafter again")
    method, read = _KINDS[kind]
    name, settings = _proposal(raw, path)
    card = Card(method, target_name=name, speculative=settings)
    return OpenedDraft(path, f"speculators {kind}", card, partial(read, path, raw, layer))


def _proposal(raw: Mapping[str, Any], path: Path) -> tuple[str | None, Mapping[str, Any]]:
    """The verifier's name, and the depth of the default proposal method."""
    where = path / "config.json"
    try:
        config = raw["speculators_config"]
        chosen = config["default_proposal_method"]
        proposal = next(item for item in config["proposal_methods"] if item["proposal_type"] == chosen)
        name = config["verifier"]["name_or_path"]
    except (KeyError, TypeError, StopIteration) as error:
        raise CheckpointError(f"{where}: speculators_config is damaged ({error!r}); copy the drafter again") from error
    depth = size(proposal, "speculative_tokens", where)
    check_depth(depth, "speculative_tokens", where)
    return name if isinstance(name, str) else None, {"num_speculative_tokens": depth}


def _eagle(path: Path, raw: Mapping[str, Any], layer: Mapping[str, Any], target: Checkpoint) -> DraftSource:
    _refuse(path, raw, "layernorms")
    return eagle_source(path, layer, target, "fusion_fc", "transformer.")


def _eagle3(path: Path, raw: Mapping[str, Any], layer: Mapping[str, Any], target: Checkpoint) -> DraftSource:
    _refuse(path, raw, "norm_before_fc", "fc_norm")
    where = path / "config.json"
    variant = Variant(
        prefix="layers.0.",
        draft_vocabulary=size(raw, "draft_vocab_size", where),
        features=_layer_ids(raw, where),
        norm_before_residual=bool(raw.get("norm_before_residual")),
        normalised_states=bool(raw.get("norm_output")),
        trained_embedding=bool(raw.get("embed_requires_grad")),
    )
    return eagle3_source(path, layer, variant, target)


def _layer_ids(raw: Mapping[str, Any], where: Path) -> tuple[int, ...] | None:
    ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(item) is int and item >= 0 for item in ids):
        raise CheckpointError(f"{where}: eagle_aux_hidden_state_layer_ids is {ids!r:.80}; it must list layers")
    return tuple(ids)


def _refuse(path: Path, raw: Mapping[str, Any], *keys: str) -> None:
    """Norms that the drafter's layers have no place for."""
    for key in keys:
        if raw.get(key):
            raise CheckpointError(f"--draft {path}: {key} is {raw[key]!r} in config.json; supported is False")


_KINDS: Mapping[str, tuple[Method, _Read]] = {
    "eagle": (Method.EAGLE, _eagle),
    "eagle3": (Method.EAGLE3, _eagle3),
}
