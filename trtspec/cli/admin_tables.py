"""What a person sees of a server's state: tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trtspec.cli.render import bars, number, percent, visible
from trtspec.client.convert import statistics
from trtspec.v1 import admin_pb2 as pb


def stats_table(found: pb.GetStatsResponse) -> Table:
    """The state of a server."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    engine, ended = found.engine, found.requests
    rows = [
        ("state", word(pb.ServingState, found.state, "SERVING_STATE_")),
        ("model", f"{found.model} ({found.engine_id[:12]})"),
        (
            "server",
            f"trtspec {found.server_version}, {found.frontend_count} front-ends, up {age(found.uptime.seconds)}",
        ),
        ("requests", f"{found.live_request_count} live"),
        (
            "ended",
            f"{ended.finished_count} finished, {ended.closed_count} closed, {ended.cancelled_count} cancelled, "
            f"{ended.failed_count} failed",
        ),
        ("outputs", f"{engine.running_count} running, {engine.waiting_count} waiting"),
        ("blocks", f"{engine.free_block_count} of {engine.total_block_count} free"),
        ("passes", f"{engine.passes}, {engine.preemption_count} preemptions"),
        ("speculation", setting_line(found.setting)),
    ]
    stats = statistics(found.speculation)
    if stats is not None:
        rows += [
            ("tokens per pass", number(stats.tokens_per_pass, 2)),
            ("acceptance rate", percent(stats.acceptance_rate)),
            ("acceptance by position", bars(stats.per_position)),
        ]
    for label, text in rows:
        table.add_row(label, Text(visible(text)))
    return table


_COLUMNS = ("id", "client", "priority", "state", "age", "prompt", "tokens", "depth", "per pass", "accepted")
_RIGHT = frozenset({"priority", "age", "prompt", "tokens", "depth", "per pass", "accepted"})


def requests_table(found: Sequence[pb.LiveRequest]) -> Table:
    """The live requests, oldest first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True)
    for item in found:
        table.add_row(*(Text(visible(text)) for text in _row(item)))
    return table


def _row(item: pb.LiveRequest) -> Sequence[str]:
    stats = statistics(item.speculation)
    asked = f" of {item.asked_draft_tokens}" if item.asked_draft_tokens != item.max_draft_tokens else ""
    return (
        item.request_id,
        "/".join(name for name in (item.client, item.tenant) if name) or "-",
        str(item.priority),
        word(pb.RequestState, item.state, "REQUEST_STATE_"),
        age(item.age.seconds),
        str(item.prompt_token_count),
        " ".join(str(count) for count in item.output_token_counts),
        f"{item.max_draft_tokens}{asked}",
        number(stats.tokens_per_pass if stats else None, 2),
        percent(stats.acceptance_rate if stats else None),
    )


def setting_line(setting: pb.SpeculationSetting) -> str:
    """What the operator has set."""
    if not setting.engine_max_draft_tokens:
        return "none: this engine drafts nothing"
    if not setting.HasField("max_draft_tokens"):
        return f"not limited; {setting.default_draft_tokens} draft tokens by default"
    if not setting.max_draft_tokens:
        return "switched off"
    return (
        f"at most {setting.max_draft_tokens} of {setting.engine_max_draft_tokens} draft tokens, "
        f"{setting.default_draft_tokens} by default"
    )


def age(seconds: int) -> str:
    """A time in the two largest units that it has."""
    for unit, size, below in (("d", 86400, "h"), ("h", 3600, "min"), ("min", 60, "s")):
        if seconds >= size:
            rest = seconds % size * {"h": 24, "min": 60, "s": 60}[below] // size
            return f"{seconds // size} {unit} {rest} {below}"
    return f"{seconds} s"


def word(kind: object, value: int, prefix: str) -> str:
    """A value of an enum, known or not."""
    known = kind.values()  # type: ignore[attr-defined] # two classes implement enums, of which the stubs describe one
    name = str(kind.Name(value)) if value in known else f"{prefix}unknown({value})"  # type: ignore[attr-defined]
    return name.removeprefix(prefix).lower()
