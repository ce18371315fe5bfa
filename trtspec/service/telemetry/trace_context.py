"""The W3C trace context of a call, as far as logs need it. Traces read it with OpenTelemetry's own parser."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def trace_id(metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
    """The trace that the caller is in; None without one, or with one that is malformed."""
    for key, value in metadata:
        if key == "traceparent" and isinstance(value, str) and (found := _TRACEPARENT.fullmatch(value)):
            version, trace, span, _, more = found.groups()
            whole = version != "ff" and not (version == "00" and more)
            return trace if whole and int(trace, 16) and int(span, 16) else None
    return None
