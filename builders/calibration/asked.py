"""What is asked of a calibration: one frozen value, checked before anything is read but the file's lines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.executors.embedded.drafter_config import HEADS
from trtspec.speculative import FLAG as CONFIG
from trtspec.speculative import MAX_TREE_NODES, SpeculativeConfig

FLAG, NODES, VOCABULARY = "--calibration", "--tree-nodes", "--draft-vocabulary"
DEFAULT_NODES = 32
RECORD = "calibration"
"""Where the manifest's `build` says what was measured."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The flags after defaults. The file's content is watched as an input of the build."""

    path: Path
    tree_nodes: int | None
    """Most nodes of the tree that is chosen; None where there is none to choose."""
    draft_vocabulary: int | None
    """Tokens that the drafter keeps; None for all."""

    def facts(self) -> Mapping[str, Any]:
        return {"tree_nodes": self.tree_nodes, "draft_vocabulary": self.draft_vocabulary}

    def check_vocabulary(self, most: int, eos_ids: Collection[int]) -> None:
        """Refuse a vocabulary that is no part of the `most` tokens of the target, or that cannot end a text."""
        size = self.draft_vocabulary
        if size is None:
            return
        if size >= most:
            raise ConfigError(f"{VOCABULARY} is {size} and the target has {most} tokens; give fewer, or leave it out")
        if size < len(eos_ids):
            raise ConfigError(
                f"{VOCABULARY} is {size} and {len(eos_ids)} tokens end a text; give at least {len(eos_ids)}"
            )


def resolve(
    path: Path | None, nodes: int | None, vocabulary: int | None, kind: str | None, config: SpeculativeConfig
) -> Calibration | None:
    """Settle the flags for a method whose networks are of this kind. Raises `ConfigError`."""
    if path is None:
        for flag, given in ((NODES, nodes), (VOCABULARY, vocabulary)):
            if given is not None:
                raise ConfigError(f"{flag} is {given} and there is no text to choose by; give {FLAG} FILE.jsonl, too")
        return None
    if vocabulary is not None and vocabulary < 1:
        raise ConfigError(f"{VOCABULARY} is {vocabulary}; it must be more than 0")
    if kind != HEADS:
        _check_without_heads(nodes, vocabulary, config)
    most = _most_nodes(nodes, config) if kind == HEADS else None
    _check_lines(path.expanduser())
    return Calibration(path.expanduser(), most, vocabulary)


def _most_nodes(nodes: int | None, config: SpeculativeConfig) -> int | None:
    if config.tree:
        if nodes is not None:
            raise ConfigError(
                f"{NODES} is {nodes} and there is a tree of {len(config.tree)} nodes, the drafter's or that of "
                f'{CONFIG}; leave {NODES} out, or give "tree": [] in {CONFIG} to have one chosen'
            )
        return None
    most = DEFAULT_NODES if nodes is None else nodes
    if not 1 <= most <= MAX_TREE_NODES:
        raise ConfigError(f"{NODES} is {most}; allowed is 1 to {MAX_TREE_NODES}")
    return most


def _check_without_heads(nodes: int | None, vocabulary: int | None, config: SpeculativeConfig) -> None:
    """Only heads guess every depth from one state, so that their trees can be chosen by measuring each head alone."""
    if nodes is None and vocabulary is not None:
        return
    what = f"{FLAG} without {VOCABULARY}" if nodes is None else f"{NODES} {nodes}"
    raise ConfigError(
        f"{what}: trees are chosen by calibration for heads (medusa) alone, and the method is {config.method.value}; "
        f"give num_speculative_tokens, and dynamic_tree for a tree, in {CONFIG}"
    )


def _check_lines(path: Path) -> None:
    from builders.training.conversations import read_lines

    if not path.is_file():
        raise ConfigError(f"{FLAG} {path}: no such file")
    if not read_lines(f"{FLAG} {path}", path):
        raise ConfigError(f'{FLAG} {path} is empty; give lines with a "prompt", and an "answer" where there is one')
