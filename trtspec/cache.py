"""Where downloads and built engines are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$TRTSPEC_CACHE`, else `$XDG_CACHE_HOME/trtspec`, else `~/.cache/trtspec`."""
    if own := os.environ.get("TRTSPEC_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trtspec"
