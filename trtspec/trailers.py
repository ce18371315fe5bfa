"""Names in gRPC metadata that the service writes and the client reads."""

from __future__ import annotations

PARTIAL_KEY = "trtspec-partial-bin"
"""A serialized `Finished`: what an accepted request that failed had come to."""
