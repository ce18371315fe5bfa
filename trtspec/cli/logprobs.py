"""Tables of log-probabilities: of the prompt, and of each output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtspec.cli.render import number, output_label, visible
from trtspec.client import Chunk, Finished
from trtspec.types import TokenLogprob, TokenLogprobs

_DIGITS = 3


def show(finished: Finished, chunks: Sequence[Chunk], file: TextIO) -> None:
    """Print what there is; the chunks hold one token each."""
    console = Console(file=file, highlight=False)
    if finished.prompt_logprobs:
        console.print("\nprompt:", _table((Text(), item) for item in finished.prompt_logprobs))
    for output in finished.outputs:
        told = [chunk for chunk in chunks if chunk.output_index == output.index and chunk.logprobs]
        if told:
            console.print()
            if len(finished.outputs) > 1:
                console.print(output_label(output.index))
            console.print(_table((Text(visible(repr(chunk.text))), chunk.logprobs[0]) for chunk in told))


def _table(rows: Iterable[tuple[Text, TokenLogprobs]]) -> Table:
    """Texts are those that became certain with the token: one of several tokens stands with the last of them."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("id", "text", "log-probability", "rank", "most likely"):
        table.add_column(name, justify="left" if name in ("text", "most likely") else "right")
    for text, item in rows:
        chosen, rank = item.chosen, "-" if item.chosen.rank is None else str(item.chosen.rank)
        best = "  ".join(_short(token) for token in item.top)
        table.add_row(str(chosen.token_id), text, number(chosen.logprob, _DIGITS), rank, best)
    return table


def _short(token: TokenLogprob) -> str:
    return f"{token.token_id}: {number(token.logprob, _DIGITS)}"
