"""The curves of a run as a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = "curves.png"


def draw(history: Sequence[Mapping[str, Any]], title: str, path: Path) -> bool:
    """Loss, accuracies by depth and tokens per pass over the tokens seen; false where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, passes = figure.subplots(1, 3)
    tokens = [item["tokens"] / 1000 for item in history]
    trained = [item for item in history if item["loss"] is not None]
    loss.plot([item["tokens"] / 1000 for item in trained], [item["loss"] for item in trained])
    loss.set_title("training loss of the first depth")
    for depth in range(min(len(item["accuracies"]) for item in history)):
        accuracy.plot(tokens, [item["accuracies"][depth][0] for item in history], label=f"depth {depth + 1}")
    accuracy.set_title("held out: first guess right")
    accuracy.legend(fontsize="small")
    passes.plot(tokens, [item["chain"] for item in history], label="chain")
    passes.plot(tokens, [item["tree"] for item in history], label="tree of 16 nodes")
    passes.set_title("held out: tokens per pass")
    passes.legend(fontsize="small")
    for axes in (loss, accuracy, passes):
        axes.set_xlabel("thousand tokens seen")
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    return True
