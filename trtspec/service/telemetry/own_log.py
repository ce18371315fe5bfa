"""The server's own log: lines for people, or JSON objects for machines."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone


def configure(form: str, process: str = "") -> None:
    """Log warnings and errors of this process to standard error; a process that is not the main one has a name."""
    handler = logging.StreamHandler()
    name = f"{process}: " if process else ""
    text = logging.Formatter(f"%(asctime)s %(levelname)s {name}%(message)s")
    handler.setFormatter(Json(process) if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class Json(logging.Formatter):
    """One object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "event": "log",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
