"""A small typed client: `async for event in client.generate("text")`.

It knows the protos and no server code. Every event is a frozen value; every failure is `RequestFailed`.
"""

from trtspec.client.client import Client
from trtspec.client.events import Accepted, Chunk, Completion, Event, Finished, Pass, RequestFailed
from trtspec.client.fields import Prompt

__all__ = [
    "Accepted",
    "Chunk",
    "Client",
    "Completion",
    "Event",
    "Finished",
    "Pass",
    "Prompt",
    "RequestFailed",
]
