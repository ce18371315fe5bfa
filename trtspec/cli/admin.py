"""`trtspec admin`: read the state of a running server, and steer it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console

from trtspec.cli.admin_tables import requests_table, setting_line, stats_table
from trtspec.cli.arguments import int32, utf8
from trtspec.cli.connection import ADMIN_SERVER, ADMIN_TOKEN_VARIABLE, add_connection, admin_client
from trtspec.cli.generate import explain
from trtspec.client import AdminClient, RequestFailed

_EXAMPLES = """\
examples:
  trtspec serve engines/mine --admin-port 50052
  trtspec admin stats
  trtspec admin requests --json
  trtspec admin cancel 5f0c2b
  trtspec admin speculation --max-draft-tokens 2
  trtspec admin speculation --off
  trtspec admin speculation --restore
  trtspec admin drain --server gpu7:50052 --token-file admin.token
"""

Work = Callable[[AdminClient, argparse.Namespace], Awaitable[None]]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "admin",
        help="read the state of a running server, and steer it",
        description="Talk to the admin port of a server (`trtspec serve --admin-port`).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add(actions, "stats", _stats, "state of server and engine, and what speculation did")
    _add(actions, "requests", _requests, "the requests that live")
    cancel = _add(actions, "cancel", _cancel, "end a request; its client gets the text so far")
    cancel.add_argument("request_id", type=utf8, metavar="ID", help="id of the request")
    speculation = _add(actions, "speculation", _speculation, "limit drafts, switch them off, or end such a limit")
    setting = speculation.add_mutually_exclusive_group(required=True)
    setting.add_argument("--max-draft-tokens", type=int32, metavar="N", help="no draft is deeper than this")
    setting.add_argument("--off", action="store_true", help="nothing is drafted")
    setting.add_argument("--restore", action="store_true", help="nothing is limited any more")
    _add(actions, "drain", _drain, "refuse new requests, finish those that live, then end, as SIGTERM does")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, work: Work, text: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    add_connection(parser, ADMIN_SERVER, ADMIN_TOKEN_VARIABLE)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run, work=work)
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask and print; 1 where the server refuses or cannot be reached."""
    try:
        asyncio.run(_ask(options))
    except RequestFailed as error:
        print(f"error: {explain(error, options.server)}", file=sys.stderr)
        return 1
    return 0


async def _ask(options: argparse.Namespace) -> None:
    async with admin_client(options) as client:
        await options.work(client, options)


async def _stats(client: AdminClient, options: argparse.Namespace) -> None:
    found = await client.stats()
    if options.json:
        _print_json(found)
    else:
        Console(highlight=False).print(stats_table(found))


async def _requests(client: AdminClient, options: argparse.Namespace) -> None:
    found = await client.list_requests()
    if options.json:
        print(json.dumps([_plain(item) for item in found], indent=2))
    else:
        Console(highlight=False).print(requests_table(found))


async def _cancel(client: AdminClient, options: argparse.Namespace) -> None:
    await client.cancel(options.request_id)
    _say(options, f"request {options.request_id} ends", request_id=options.request_id)


async def _speculation(client: AdminClient, options: argparse.Namespace) -> None:
    setting = await client.set_speculation(
        max_draft_tokens=options.max_draft_tokens, off=options.off or None, restore=options.restore or None
    )
    if options.json:
        _print_json(setting)
    else:
        print(setting_line(setting))


async def _drain(client: AdminClient, options: argparse.Namespace) -> None:
    live = await client.drain()
    _say(options, f"the server drains; {live} requests live", live_request_count=live)


def _say(options: argparse.Namespace, text: str, **facts: object) -> None:
    print(json.dumps(facts) if options.json else text)


def _print_json(message: Message) -> None:
    print(json.dumps(_plain(message), indent=2))


def _plain(message: Message) -> dict[str, object]:
    """As its proto says, counts of 0 included; what is unknown is left out."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
