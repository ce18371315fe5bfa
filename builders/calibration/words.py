"""A calibration in words, before and after it ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builders.calibration.asked import FLAG, NODES, Calibration
from trtspec.executors.embedded.drafter_config import HEADS
from trtspec.speculative import SpeculativeConfig


def planned(asked: Calibration | None, kind: str | None, config: SpeculativeConfig) -> Mapping[str, str]:
    """What is going to be settled, or how that could be."""
    if asked is None:
        if kind != HEADS or config.tree:
            return {}
        return {"tree": f"none, so drafts are chains; {FLAG} FILE.jsonl chooses one ({NODES} bounds it)"}
    what = [
        *([f"a tree of at most {asked.tree_nodes} nodes"] if asked.tree_nodes else []),
        *([f"the {asked.draft_vocabulary} tokens that are drafted"] if asked.draft_vocabulary else []),
    ]
    return {"calibrated": f"on {asked.path}: {' and '.join(what) or 'only measured, the tree being given'}"}


def told(record: Mapping[str, Any], config: SpeculativeConfig) -> str:
    """What was measured, in a few lines; "" without a calibration."""
    if not record:
        return ""
    rows = [("text", f"{record['conversations']} conversations, {record['answer_tokens']} answer tokens")]
    if cut := record.get("draft_vocabulary"):
        rows.append(("vocabulary", f"{cut['tokens']} tokens, which are {_percent(cut['covers'])} of the answers'"))
    for head, top in enumerate(record.get("heads", ()), 1):
        given = " where the heads before it are" if head > 1 else ""
        rows.append((f"head {head}", f"right at first {_percent(top['1'])}, among four {_percent(top['4'])}{given}"))
    if worth := record.get("tokens_per_pass"):
        rows.append(("chain", f"{worth['chain']:.2f} tokens per pass expected"))
        rows.append(("tree", _tree(record, worth, config)))
    return "\n".join(f"{key:<10} {value}" for key, value in rows)


def _tree(record: Mapping[str, Any], worth: Mapping[str, float], config: SpeculativeConfig) -> str:
    if not config.tree:
        return "none: no head was ever right, so drafts are chains"
    whose = "chosen" if record["tree_chosen"] else "given"
    return f"{worth['tree']:.2f} tokens per pass expected; {len(config.tree)} nodes, {whose}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def smoke_note(smoke: Mapping[str, Any]) -> str:
    """What a smoke run showed, in brackets."""
    if smoke["equal"] is None:
        return f" ({smoke['tokens']} greedy tokens)"
    if smoke["equal"]:
        return f" ({smoke['tokens']} greedy tokens, the same with and without speculation)"
    return f" (with speculation, token {smoke['first_difference']} differs: half precision flips near-ties)"
