"""A small typed client: `async for event in client.generate("text")`.

It knows the protos and no server code. Every event is a frozen value; every failure is `RequestFailed`.
"""

from trtspec.client.admin import AdminClient
from trtspec.client.client import Client
from trtspec.client.events import Accepted, Chunk, Completion, Event, Finished, Output, Pass, RequestFailed
from trtspec.client.fields import Prompt
from trtspec.client.request import Options

__all__ = [
    "Accepted",
    "AdminClient",
    "Chunk",
    "Client",
    "Completion",
    "Event",
    "Finished",
    "Options",
    "Output",
    "Pass",
    "Prompt",
    "RequestFailed",
]
