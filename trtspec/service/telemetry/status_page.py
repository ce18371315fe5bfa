"""The routes of the status port: the page, its numbers, metrics for Prometheus, and health for balancers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from trtspec.service.telemetry.exposition import render
from trtspec.service.telemetry.overview import Overview
from trtspec.service.telemetry.small_http import Answer, Headers, Route
from trtspec.service.telemetry.status_json import status


def routes(overview: Overview) -> Mapping[str, Route]:
    """What is served, by path."""

    async def page(headers: Headers) -> Answer:
        return _page()

    async def numbers(headers: Headers) -> Answer:
        return Answer(json.dumps(status(overview), separators=(",", ":")).encode(), "application/json")

    async def metrics(headers: Headers) -> Answer:
        scrape = await overview.scrape()
        body, content_type = await asyncio.to_thread(render, scrape, headers.get("accept", ""))
        return Answer(body, content_type)

    async def health(headers: Headers) -> Answer:
        return Answer(f"{overview.state}\n".encode(), status=200 if overview.serving else 503)

    return {"/": page, "/status.json": numbers, "/metrics": metrics, "/healthz": health}


@cache
def _page() -> Answer:
    html = (resources.files("trtspec.service.telemetry") / "page.html").read_bytes()
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {_hash(html, b'script')}; style-src {_hash(html, b'style')}"
    )
    return Answer(html, "text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


def _hash(html: bytes, tag: bytes) -> str:
    """What a browser may run or apply: only what the file itself has."""
    (text,) = re.findall(b"<%s>(.*?)</%s>" % (tag, tag), html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
