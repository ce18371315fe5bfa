"""What a caller may give as a guide, and that it is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtspec.client.fields import message, refusal
from trtspec.v1 import inference_pb2 as pb


def guide_text(value: Any) -> Any:
    """A mapping as the JSON that travels; a text stays as it is."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def choices(options: Any) -> pb.Choices:
    """Texts of which the output is one."""
    return message(pb.Choices, "guided_decoding.choice.", options=options)


def one_guide(asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The group of the one guide that is asked for, if any; the message would keep the last of several."""
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        raise refusal("guided_decoding", " and ".join(given), "one guide")
    return {"guided_decoding": given} if given else {}
