"""What every format comes to: a drafter's shape and its weights under their stored names, before any weight is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from builders.checkpoint import Checkpoint
from builders.drafts.card import Card
from builders.layout import Packed, layer_items
from builders.safetensors_file import TensorInfo
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.drafter_config import TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import TOKEN_IDS
from trtspec.executors.embedded.weights import EMBEDDING, HEAD
from trtspec.speculative import MAX_DRAFT_TOKENS


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A drafter whose headers were read, for one target."""

    path: Path
    config: DrafterConfig
    items: tuple[Packed, ...]
    """All weights but the token ids."""
    read: Callable[[str], Tensor]
    """One of the tensors that the items are made of."""
    token_ids: Tensor | None = None
    """[D] int64, ascending: the target's ids of the drafted tokens, where they are not all."""
    model: Checkpoint | None = None
    """The checkpoint of a whole model, whose tokenizer must be the target's."""
    is_int8: bool = False
    """Its matrices are stored as 8-bit integers."""
    same_tokenizer: bool = True
    """False once the model's tokenizer was found to begin or end texts otherwise, which was allowed."""
    beside_target: bool = False
    """It lies in the target's own folder, and so is made for it."""

    @property
    def packed(self) -> tuple[Packed, ...]:
        """All weights, token ids first."""
        if self.token_ids is None:
            return self.items
        return (Packed(TOKEN_IDS, (TOKEN_IDS,), (tuple(self.token_ids.shape),), integers=True), *self.items)

    def tensor(self, name: str) -> Tensor:
        """One of the tensors that `packed` names."""
        return self.token_ids if name == TOKEN_IDS and self.token_ids is not None else self.read(name)

    def for_vocabulary(self, size: int) -> DraftSource:
        """The same without what a target with this many ids never emits: padding is not drafted."""
        ids = None if self.token_ids is None else self.token_ids[self.token_ids < size]
        count = size if ids is None else len(ids)
        for item in self.items:
            part = _last(item.name)
            rows = {EMBEDDING: size, HEAD: count}.get(part, 0)
            if item.shape[0] < rows:
                raise CheckpointError(
                    f"--draft {self.path}: its {part} has {item.shape[0]} rows and the target's ids ask for {rows}; "
                    "give a drafter that was made for this vocabulary"
                )
        items = tuple(replace(item, kept=count) if self._is_cut(item) else item for item in self.items)
        return replace(self, config=replace(self.config, vocabulary_size=count), items=items, token_ids=ids)

    def reduced(self, token_ids: Tensor) -> DraftSource:
        """One that drafted all the target's tokens, with these alone, [D] ascending: its output heads keep their rows.

        A head that it shares, with the target or with its own embedding, is picked from when the engine opens.
        """
        heads = {source for item in self.items if _last(item.name) == HEAD for source in item.sources}

        def read(name: str) -> Tensor:
            return self.read(name)[token_ids] if name in heads else self.read(name)

        count = len(token_ids)
        items = tuple(
            replace(item, shapes=((count, *item.shape[1:]),), kept=None) if _last(item.name) == HEAD else item
            for item in self.items
        )
        config = replace(self.config, vocabulary_size=count)
        return replace(self, config=config, items=items, read=read, token_ids=token_ids)

    def _is_cut(self, item: Packed) -> bool:
        """Heads are. A whole model's keeps its padding, as the target's does."""
        return self.config.kind != TOKENS and _last(item.name) == HEAD


def _last(name: str) -> str:
    return name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A folder whose format is known. Its card needs no target; its source does."""

    path: Path
    format: str
    card: Card
    source: Callable[[Checkpoint], DraftSource]


def one(name: str, source: str, *shape: int) -> Packed:
    """A weight that is one tensor of the checkpoint."""
    return Packed(name, (source,), (shape,))


def layer(
    shapes: Mapping[str, tuple[int, ...]], source: Callable[[str], str], name: Callable[[str], str]
) -> list[Packed]:
    """The weights of a layer whose tensors have these shapes under their names inside it."""
    return list(layer_items({source(part): shape for part, shape in shapes.items()}, source, name))


def check_items(
    items: Iterable[Packed], tensors: Mapping[str, TensorInfo], path: Path, spare: Collection[str] = ()
) -> None:
    """Refuse a folder whose tensors are not the ones that the items are made of; `spare` ones may be there."""
    expected = {source: shape for item in items for source, shape in zip(item.sources, item.shapes, strict=True)}
    if missing := [name for name in expected if name not in tensors]:
        raise CheckpointError(
            f"--draft {path}: tensor {missing[0]} is missing, one of {len(missing)}; copy the drafter again"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"--draft {path}: tensor {name} has shape {list(tensors[name].shape)}, and its config and the target "
                f"ask for {list(shape)}; give a drafter that was made for this target"
            )
    if unknown := [name for name in tensors if name not in expected and name not in spare]:
        raise CheckpointError(
            f"--draft {path}: tensor {unknown[0]} has no place in this kind of drafter; nothing is left out silently, "
            "so give one without additions"
        )


def check_depth(depth: int, key: str, where: Path) -> None:
    """Refuse drafts deeper than any engine makes."""
    if depth > MAX_DRAFT_TOKENS:
        raise CheckpointError(f"{where}: {key} is {depth}; supported is 1 to {MAX_DRAFT_TOKENS}")


def check_token_ids(path: Path, ids: Tensor, size: int, what: str) -> None:
    """Refuse ids of drafted tokens that do not ascend, or that the target does not have; `what` holds them."""
    if not len(ids):
        raise CheckpointError(f"--draft {path}: {what} names no ids; copy or train the drafter again")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise CheckpointError(
            f"--draft {path}: {what} gives ids from {low} to {high} and the target has {size}; "
            "give a drafter that was made for this target"
        )
    stuck = (ids.diff() <= 0).nonzero()
    if len(stuck):
        place = int(stuck[0])
        raise CheckpointError(
            f"--draft {path}: {what} gives id {int(ids[place + 1])} after {int(ids[place])}; ids must ascend"
        )
