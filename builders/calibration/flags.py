"""The flags of a calibration, and what they say of themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.calibration.asked import DEFAULT_NODES, FLAG, NODES, VOCABULARY
from trtspec.speculative import MAX_TREE_NODES


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the group to the parser of a build."""
    group = parser.add_argument_group("what to choose by measuring")
    group.add_argument(
        FLAG,
        type=Path,
        metavar="FILE.jsonl",
        help='text to measure on: lines with a "prompt" and perhaps an "answer", as texts or as token ids; the target '
        "answers what has none. Heads that bring no tree get the best one; a tree in --speculative-config or with the "
        "drafter stays as it is, num_speculative_tokens bounds the depth",
    )
    group.add_argument(
        NODES,
        type=int,
        metavar="N",
        help=f"most nodes of the tree that is chosen, up to {MAX_TREE_NODES} (default: {DEFAULT_NODES})",
    )
    group.add_argument(
        VOCABULARY,
        type=int,
        metavar="N",
        help="let the drafter draft only the N tokens that the answers use most, and those that end a text; its output "
        "head, most of the work of a small drafter, becomes so much smaller (default: all tokens)",
    )
