"""`trtspec generate`: ask a running server, and see what speculation did."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

import grpc
from rich.console import Console

from trtspec.cli import compare, guides, logprobs
from trtspec.cli.arguments import bias, int32, uint64, utf8
from trtspec.cli.connection import add_connection, way_in
from trtspec.cli.connection import client as connect
from trtspec.cli.json_lines import as_dict, summary
from trtspec.cli.render import StreamPrinter, cautions, summary_table
from trtspec.client import Accepted, Chunk, Client, Finished, Prompt, RequestFailed
from trtspec.client.collect import Collector
from trtspec.errors import ConfigError, TrtspecError
from trtspec.v1 import inference_pb2 as pb

_EXAMPLES = """\
examples:
  trtspec generate "Name three rivers."
  trtspec generate --raw "Once upon a time" --max-tokens 64 --temperature 0.8 --seed 7
  trtspec generate --n 3 --temperature 1 --bad-word river "Describe the water."
  trtspec generate --logprobs 2 --max-tokens 8 "Two and two is"
  trtspec generate --choice yes --choice no "Is water wet?"
  trtspec generate --json-schema person.json "Describe Ada Lovelace."
  trtspec generate --compare --repeat 5 "Repeat this list: red, green, blue, red, green, blue"
  TRTSPEC_TOKEN=... trtspec generate --server models.example:50051 --tls "Hello"
  cat letter.txt | trtspec generate --system "Rewrite in plain words." - --json
"""
_REPEAT = 3
_OPTIONS = (
    ("--max-tokens", int32, "INT", "most tokens to generate; unset: what the context leaves"),
    ("--min-tokens", int32, "INT", "let nothing end the answer among this many first tokens"),
    ("--temperature", float, "FLOAT", "0 is greedy; unset: the model's default"),
    ("--top-k", int32, "INT", "keep the K most likely tokens"),
    ("--top-p", float, "FLOAT", "keep the smallest set of tokens with this probability"),
    ("--min-p", float, "FLOAT", "drop tokens less likely than this share of the most likely"),
    ("--repetition-penalty", float, "FLOAT", "above 1: make tokens of the prompt and the answer less likely"),
    ("--presence-penalty", float, "FLOAT", "take this from the logit of a token that the answer has, -2 to 2"),
    ("--frequency-penalty", float, "FLOAT", "take this for each time that the answer has the token, -2 to 2"),
    ("--seed", uint64, "INT", "same seed, same text"),
    ("--max-draft-tokens", int32, "INT", "deepest draft"),
    ("--logprobs", int32, "N", "show the log-probability of each token and the N most likely ones, 0 to 20"),
    ("--prompt-logprobs", int32, "N", "the same for the tokens of the prompt"),
    ("--n", int32, "N", "outputs for the prompt, each chosen on its own; greedy ones are equal"),
)
_REPEATABLE = (
    ("--logit-bias", "logit_bias", bias, "ID=VALUE", "add to the logit of a token id, -100 to 100; may be repeated"),
    ("--bad-word", "bad_words", utf8, "TEXT", "do not generate this text in its usual tokens; may be repeated"),
    ("--stop", "stop", utf8, "TEXT", "end at this text; may be repeated"),
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "generate",
        help="stream an answer from a running server",
        description="Stream an answer. On a terminal, drafted and accepted tokens are coloured.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", type=utf8, help="the prompt, or - to read it from standard input")
    parser.add_argument("--raw", action="store_true", help="send plain text, without the model's chat template")
    parser.add_argument("--system", type=utf8, metavar="TEXT", help="system message of the chat")
    for flag, kind, metavar, text in _OPTIONS:
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)
    for flag, name, parse, metavar, text in _REPEATABLE:
        parser.add_argument(flag, dest=name, type=parse, action="append", default=[], metavar=metavar, help=text)
    guides.add_options(parser)
    parser.add_argument("--ignore-eos", action="store_true", help="generate past the model's end-of-text tokens")
    parser.add_argument("--speculation", choices=("default", "on", "off"), help="whether to draft")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line, the last one a summary")
    parser.add_argument("--compare", action="store_true", help="measure with speculation off and on, and compare")
    parser.add_argument(
        "--repeat", type=int, metavar="INT", help=f"runs of each side of --compare (default: {_REPEAT})"
    )
    add_connection(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask and print; 1 where the server refuses or cannot be reached."""
    _check(options)
    text = _standard_input() if options.prompt == "-" else options.prompt
    try:
        return asyncio.run(_ask(options, text))
    except RequestFailed as error:
        print(f"error: {explain(error, options.server)}", file=sys.stderr)
        return 1


def explain(error: RequestFailed, server: str) -> str:
    """What happened to a request, and the way out."""
    # A status without a reason did not come from our service: the connection broke.
    if error.status is grpc.StatusCode.UNAVAILABLE and not error.reason:
        return f"the connection to {server} was lost ({error})"
    field = f"{error.field}: " if error.field and error.field not in str(error) else ""
    return f"{field}{error} ({error.status.name}){way_in(error)}"


def _check(options: argparse.Namespace) -> None:
    """Refuse flags that another one would make useless."""
    if options.system is not None and options.raw:
        raise ConfigError("--system is part of the chat and --raw sends none; leave one of them out")
    if options.repeat is not None and not options.compare:
        raise ConfigError("--repeat counts the runs of --compare; add --compare or leave it out")
    if options.speculation is not None and options.compare:
        raise ConfigError("--compare runs with speculation off and on; leave --speculation out")
    for flag in ("n", "logprobs", "prompt_logprobs"):
        if getattr(options, flag) is not None and options.compare:
            raise ConfigError(
                f"--compare measures one output and shows no tokens; leave --{flag.replace('_', '-')} out"
            )
    ids = [token_id for token_id, _ in options.logit_bias]
    if twice := [token_id for token_id in ids if ids.count(token_id) > 1]:
        raise ConfigError(f"--logit-bias is given for token id {twice[0]} more than once; leave one")


def _standard_input() -> str:
    try:
        return utf8(sys.stdin.read())
    except (UnicodeDecodeError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"standard input is not UTF-8 text ({error})") from error


async def _ask(options: argparse.Namespace, text: str) -> int:
    async with connect(options) as client:
        info = await _describe(client, options.server)
        prompt = _prompt(options, text, has_template=info.has_chat_template)
        arguments = _arguments(options)
        if options.compare:
            repeat = _REPEAT if options.repeat is None else options.repeat
            return await compare.run(client, prompt, arguments, repeat, info.dtype, as_json=options.json)
        if options.json:
            return await _print_json(client, prompt, arguments)
        return await _print_text(client, prompt, arguments)


async def _describe(client: Client, server: str) -> pb.GetModelInfoResponse:
    """What the server serves: the first word from it, so its silence means that there is none."""
    try:
        return await client.model_info()
    except RequestFailed as error:
        if error.status is not grpc.StatusCode.UNAVAILABLE or error.reason:
            raise
        raise TrtspecError(
            f"no server answers at {server}; start one with: trtspec serve ENGINE_OR_MODEL (or name it with --server, "
            f"and with --tls or --ca if it has a certificate): {error}"
        ) from error


def _prompt(options: argparse.Namespace, text: str, *, has_template: bool) -> Prompt:
    if options.system is not None and not has_template:
        raise ConfigError("--system needs a chat template, and this model has none; leave it out")
    if options.raw or not has_template:
        return text
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, {"role": "user", "content": text}]


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    names = [flag.removeprefix("--").replace("-", "_") for flag, *_ in _OPTIONS]
    names += [name for _, name, *_ in _REPEATABLE] + ["ignore_eos"]
    arguments = {name: getattr(options, name) for name in names} | guides.arguments(options)
    return arguments | {"speculation": options.speculation or "default", "logit_bias": dict(options.logit_bias)}


async def _print_text(client: Client, prompt: Prompt, arguments: dict[str, Any]) -> int:
    printer = StreamPrinter(sys.stdout, several=(arguments["n"] or 1) > 1)
    chunks: list[Chunk] = []
    finished: Finished | None = None
    # Only single tokens can be coloured or listed: the text of a pass does not tell which part is whose.
    granularity = "token" if printer.coloured or arguments["logprobs"] is not None else "step"
    try:
        async for event in client.generate(prompt, granularity=granularity, **arguments):
            if isinstance(event, Accepted):
                for line in cautions(event):
                    print(line, file=sys.stderr)
            elif isinstance(event, Chunk):
                printer.print(event)
                chunks.append(event)
            elif isinstance(event, Finished):
                finished = event
    except RequestFailed as error:
        finished = error.partial
        raise
    finally:
        printer.end()
        if finished is not None:
            logprobs.show(finished, chunks, sys.stdout)
            Console(stderr=True, highlight=False).print(summary_table(finished))
    return 0


async def _print_json(client: Client, prompt: Prompt, arguments: dict[str, Any]) -> int:
    collector = Collector()
    async for event in client.generate(prompt, **arguments):
        print(json.dumps(as_dict(event)), flush=True)
        collector.take(event)
    print(json.dumps(summary(collector.completion())), flush=True)
    return 0
