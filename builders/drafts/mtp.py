"""Multi-token-prediction modules that lie beside their target, in its own folder.

DeepSeek-V3's layout: module K is `model.layers.N` for N = layers + K, a decoder layer with `enorm` and `hnorm` over
embedding and state, `eh_proj` that fuses them, embedding first, and `shared_head.norm`; its `embed_tokens` and
`shared_head.head` repeat the target's. The state that is handed on is what goes into that norm (`deepseek_mtp.py` of
vLLM). Qwen3-Next's layout: `mtp.fc`, `mtp.pre_fc_norm_embedding`, `mtp.pre_fc_norm_hidden` and `mtp.norm` serve all
modules, module K's layer is `mtp.layers.K`, and the state handed on is normalised (`qwen3_next_mtp.py` of vLLM); all
its norms multiply by 1 + weight (`Qwen3NextRMSNorm` of `transformers`), while ours multiply by the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile

from torch import Tensor

from builders.checkpoint import MTP_FUSION, MTP_PREFIX, Checkpoint, layer_tensor
from builders.drafts.card import Card
from builders.drafts.layout import module_layer_shapes
from builders.drafts.source import DraftSource, OpenedDraft, check_items, layer, one
from builders.layout import Packed
from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.drafter_config import FEATURES, DrafterConfig
from trtspec.executors.embedded.drafter_weights import module_name
from trtspec.executors.embedded.weights import layer_name
from trtspec.speculative import MAX_DRAFT_TOKENS
from trtspec.types import Method

_DEEPSEEK = {"fuse": MTP_FUSION, "token_norm": "enorm.weight", "state_norm": "hnorm.weight"}
_DEEPSEEK_NORM = "shared_head.norm.weight"
_REPEATED = ("embed_tokens.weight", "shared_head.head.weight")
_QWEN = {
    "fuse": "fc.weight",
    "token_norm": "pre_fc_norm_embedding.weight",
    "state_norm": "pre_fc_norm_hidden.weight",
    "norm": "norm.weight",
}


@dataclass(frozen=True, slots=True)
class _Modules:
    """Where the modules of a folder are."""

    layers: tuple[str, ...]
    """The prefix of each module's layer."""
    parts: Callable[[str], Mapping[str, str]]
    """From that prefix to the module's other tensors, by stored name."""
    normalised_states: bool
    norms_from_zero: bool = False
    """Norms multiply by 1 + weight."""
    repeated: tuple[str, ...] = ()
    """Inside a layer's prefix: tensors of the target once more."""


def open_mtp(target: Checkpoint) -> OpenedDraft:
    """The modules in the target's folder."""
    found = _find(target)
    card = Card(Method.MTP, speculative={"num_speculative_tokens": min(len(found.layers), MAX_DRAFT_TOKENS)})
    return OpenedDraft(target.path, "mtp", card, partial(_source, found))


def _find(target: Checkpoint) -> _Modules:
    first = target.config.num_layers
    deepseek = _while_there(target, lambda index: layer_tensor(first + index, ""), MTP_FUSION)
    if deepseek:
        parts = _DEEPSEEK | {"norm": _DEEPSEEK_NORM}
        return _Modules(deepseek, lambda prefix: {k: prefix + v for k, v in parts.items()}, False, repeated=_REPEATED)
    qwen = _while_there(target, lambda index: f"{MTP_PREFIX}layers.{index}.", "mlp.down_proj.weight")
    if qwen:
        return _Modules(qwen, lambda _: {k: MTP_PREFIX + v for k, v in _QWEN.items()}, True, norms_from_zero=True)
    raise CheckpointError(
        f"--method mtp: {target.path} has no multi-token-prediction modules; looked for "
        f"{layer_tensor(first, MTP_FUSION)} (DeepSeek-V3) and {MTP_PREFIX}layers.0 (Qwen3-Next). Give a drafter with "
        "--draft DIR, or train one with `python -m builders.train --method mtp`"
    )


def _while_there(target: Checkpoint, prefix: Callable[[int], str], part: str) -> tuple[str, ...]:
    return tuple(takewhile(lambda item: item + part in target.tensors, map(prefix, count())))


def _source(found: _Modules, target: Checkpoint) -> DraftSource:
    config = DrafterConfig(
        kind=FEATURES,
        decoder=replace(target.config, num_layers=1, tie_word_embeddings=False),
        features=(LAST_HIDDEN,),
        vocabulary_size=target.config.vocab_size,
        own_embedding=False,
        own_head=False,
        modules=len(found.layers),
        normalised_inputs=True,
        normalised_states=found.normalised_states,
    )
    items = [item for module in range(config.modules) for item in _items(config, found, module, target)]
    begins = (MTP_PREFIX, *found.layers)
    tensors = {name: info for name, info in target.tensors.items() if name.startswith(begins)}
    check_items(items, tensors, target.path, {prefix + name for prefix in found.layers for name in found.repeated})
    read = partial(_read_from_zero, target) if found.norms_from_zero else target.read
    return DraftSource(target.path, config, tuple(items), read, beside_target=True)


def _read_from_zero(target: Checkpoint, name: str) -> Tensor:
    """A tensor; a norm's weight as ours are."""
    tensor = target.read(name)
    return tensor.float() + 1 if "norm" in name.split(".")[-2] else tensor


def _items(config: DrafterConfig, found: _Modules, module: int, target: Checkpoint) -> list[Packed]:
    hidden, prefix = target.config.hidden_size, found.layers[module]
    name = partial(module_name, module)
    parts = found.parts(prefix)
    items = [one(name("fuse"), parts["fuse"], hidden, 2 * hidden)]
    items += [one(name(part), parts[part], hidden) for part in ("token_norm", "state_norm")]
    inside = module_layer_shapes(config, 0)
    items += layer(inside, lambda part: prefix + part, lambda part: name(layer_name(0, part)))
    return [*items, one(name("norm"), parts["norm"], hidden)]
