"""What a person sees of an answer: coloured runs while it streams, then its numbers.

It owns styles and wording. It does not know where events come from.
"""

from __future__ import annotations

import os
import unicodedata
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trtspec.client import Accepted, Chunk, Finished
from trtspec.client.events import word
from trtspec.types import OutputLaw

ACCEPTED_STYLES = ("green", "cyan")
"""Two shades, so that neighbouring passes can be told apart."""
_BARS = "▁▂▃▄▅▆▇█"
_HARMLESS_CONTROLS = frozenset("\n\t")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class RunPainter:
    """Gives each token its style: drafted and accepted, or the target's own."""

    def __init__(self) -> None:
        self._accepted_left = 0
        self._shade = 0

    def style(self, chunk: Chunk) -> str:
        """Style of a one-token chunk. Within a pass the accepted tokens come first."""
        if chunk.passes:
            self._accepted_left = chunk.passes[-1].accepted or 0
            self._shade ^= bool(self._accepted_left)
        if not self._accepted_left or not chunk.token_ids:
            return ""
        self._accepted_left -= 1
        return ACCEPTED_STYLES[self._shade]


class StreamPrinter:
    """Prints chunks as they come; colours where the file is a terminal that wants them.

    Of several outputs the first is printed as it comes and the others after it, each under its number.
    """

    def __init__(self, file: TextIO, *, several: bool = False) -> None:
        self._console = Console(file=file, highlight=False, soft_wrap=True)
        self._painter = RunPainter()
        self._several = several
        self._held: list[Chunk] = []
        self._output: int | None = None
        self.coloured = self._console.is_terminal and not os.environ.get("NO_COLOR")

    def print(self, chunk: Chunk) -> None:
        """Take one chunk; of the first output it is printed at once."""
        if chunk.output_index:
            self._held.append(chunk)
        else:
            self._print(chunk)

    def _print(self, chunk: Chunk) -> None:
        if chunk.output_index != self._output:
            self._begin(chunk.output_index)
        text = visible(chunk.text) if self._console.is_terminal else chunk.text
        if self.coloured:
            self._console.print(Text(text, style=self._painter.style(chunk)), end="")
        else:
            self._console.file.write(text)
        self._console.file.flush()

    def _begin(self, output_index: int) -> None:
        if self._output is not None:
            self._console.file.write("\n\n")
        if self._several:
            self._console.print(output_label(output_index))
        self._output = output_index
        self._painter = RunPainter()

    def end(self) -> None:
        """End the text, if there was any, and say what its colours mean, if it had some."""
        for chunk in sorted(self._held, key=lambda chunk: chunk.output_index):
            self._print(chunk)
        if self._output is None:
            return
        self._console.file.write("\n")
        if self.coloured:
            legend = [("drafted and accepted", style) for style in ACCEPTED_STYLES]
            parts: list[str | tuple[str, str]] = ["\ncolours: "]
            for label, style in legend:
                parts += [(label, style), ", "]
            self._console.print(Text.assemble(*parts[:-1], " (two shades for neighbouring passes), the target's own"))


def cautions(accepted: Accepted) -> list[str]:
    """What a reader of the text must know: nothing where it is the target's own and the drafter was made for it."""
    found = []
    if accepted.output_law is OutputLaw.TYPICAL:
        found.append("output law typical: sampled text is not that of the model alone; this is not lossless")
    elif accepted.output_law is not OutputLaw.EXACT:
        found.append(f"output law {word(accepted.output_law)}: nothing shows that the text is that of the model alone")
    if accepted.unverified_target:
        found.append("drafter not verified: nothing shows that it was made for this model; it may only cost speed")
    return found


def output_label(output_index: int) -> Text:
    """Stands above what belongs to one of several outputs."""
    return Text(f"output {output_index}:", style="bold")


def visible(text: str) -> str:
    """Model text without the control characters that would steer a terminal."""
    return "".join(_REPLACEMENT if _steers(char) else char for char in text)


def _steers(char: str) -> bool:
    return unicodedata.category(char) == "Cc" and char not in _HARMLESS_CONTROLS


def tokens_per_second(finished: Finished) -> float | None:
    """Tokens after the first one by the time from the first to the last."""
    if not finished.decode_seconds or finished.completion_tokens < 2:
        return None
    return (finished.completion_tokens - 1) / finished.decode_seconds


def summary_table(finished: Finished) -> Table:
    """The numbers of one answer."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    stats = finished.stats
    if stats is not None:
        table.add_row("tokens per pass", number(stats.tokens_per_pass, 2))
        table.add_row("acceptance rate", percent(stats.acceptance_rate))
        table.add_row("acceptance by position", bars(stats.per_position))
    table.add_row("time to first token", milliseconds(finished.time_to_first_token))
    table.add_row("tokens per second", f"{number(tokens_per_second(finished), 1)} (this request)")
    cached = f" ({finished.cached_prompt_tokens} from the cache)" if finished.cached_prompt_tokens else ""
    table.add_row("tokens", f"{finished.prompt_tokens} in{cached}, {finished.completion_tokens} out")
    for output in finished.outputs:
        label = "finish reason" if len(finished.outputs) == 1 else f"finish reason of output {output.index}"
        stop = f" {output.stop_string!r}" if output.stop_string else ""
        # As a Text: a stop string may look like rich's own markup.
        table.add_row(label, Text(word(output.reason) + stop))
    return table


def bars(shares: tuple[float, ...]) -> str:
    """A small bar and a percentage for each draft position."""
    if not shares:
        return number(None, 0)
    return "  ".join(f"{_BARS[round(share * (len(_BARS) - 1))]} {share:.0%}" for share in shares)


def number(value: float | None, digits: int) -> str:
    """A number, or a dash where it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"
