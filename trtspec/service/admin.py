"""The Admin service: what an operator reads and does while a server runs. It only translates."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import grpc

from trtspec import __version__
from trtspec.errors import InvalidField, RequestNotFound
from trtspec.service import admin_messages as messages
from trtspec.service.callers import Access, Context
from trtspec.service.checks import check, check_number, shown
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.signals import StopSignals
from trtspec.service.status import to_status
from trtspec.service.watching import Watched, WatchedExecutor
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.v1 import admin_pb2 as pb
from trtspec.v1 import admin_pb2_grpc as rpc

_PAGE = 100
_LARGEST_PAGE = 1000
_log = logging.getLogger(__name__)

R = TypeVar("R")


class AdminServicer(rpc.AdminServicer):
    """Answers whom `access` lets in."""

    def __init__(
        self,
        executor: WatchedExecutor,
        model: ServedModel,
        options: ServeOptions,
        signals: StopSignals,
        access: Access,
    ) -> None:
        self._executor = executor
        self._model = model
        self._options = options
        self._signals = signals
        self._access = access
        self._since = time.monotonic()

    async def GetStats(self, request: pb.GetStatsRequest, context: Context) -> pb.GetStatsResponse:
        """The state at this moment."""
        return await self._answer(context, self._stats)

    async def ListRequests(self, request: pb.ListRequestsRequest, context: Context) -> pb.ListRequestsResponse:
        """A page of the live requests."""

        async def page(who: str) -> pb.ListRequestsResponse:
            return self._page(request)

        return await self._answer(context, page)

    async def CancelRequest(self, request: pb.CancelRequestRequest, context: Context) -> pb.CancelRequestResponse:
        """End a request."""

        async def cancel(who: str) -> pb.CancelRequestResponse:
            name = request.request_id
            check(bool(name), "request_id", "empty", "the id of a live request")
            if not self._executor.cancel(name):
                raise RequestNotFound(f"no request {shown(name)} lives; it may have ended", request_id=name)
            _log.warning("request %s was cancelled by %s", shown(name), who)
            return pb.CancelRequestResponse()

        return await self._answer(context, cancel)

    async def SetSpeculation(self, request: pb.SetSpeculationRequest, context: Context) -> pb.SetSpeculationResponse:
        """Limit drafts, and answer when that is in force."""

        async def limit(who: str) -> pb.SetSpeculationResponse:
            applied = await self._executor.limit_speculation(self._asked_limit(request))
            _log.warning("drafts are limited to %s since %s said so", applied, who)
            return pb.SetSpeculationResponse(setting=messages.setting(self._model, applied))

        return await self._answer(context, limit)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Begin to end the server."""

        async def drain(who: str) -> pb.DrainResponse:
            _log.warning("the server was told to drain by %s", who)
            self._signals.ask()
            return pb.DrainResponse(live_request_count=len(self._executor.live()))

        return await self._answer(context, drain)

    async def _answer(self, context: Context, work: Callable[[str], Awaitable[R]]) -> R:
        """What the work gives for a caller that may have it, or its error as a status."""
        try:
            return await work(self._access.caller(context).name)
        except Exception as error:
            failure = error
        return await _abort(context, to_status(failure))

    async def _stats(self, who: str) -> pb.GetStatsResponse:
        limit = self._executor.speculation_limit()
        return pb.GetStatsResponse(
            state=messages.serving_state(self._executor.health(), draining=self._signals.stop.done()),
            uptime=messages.duration(time.monotonic() - self._since),
            server_version=__version__,
            engine_id=self._model.info.engine_id,
            model=self._model.info.model,
            frontend_count=self._options.frontends,
            engine=messages.engine_state(await self._executor.stats()),
            live_request_count=len(self._executor.live()),
            requests=messages.request_counts(self._executor.ends),
            speculation=messages.totals(self._model, self._executor.totals()),
            setting=messages.setting(self._model, limit),
        )

    def _page(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        check(request.page_size >= 0, "page_size", request.page_size, "0 or more")
        size, after = min(request.page_size or _PAGE, _LARGEST_PAGE), _serial(request.page_token)
        rest = [item for item in self._executor.live() if item.serial > after]
        return pb.ListRequestsResponse(
            requests=[self._live(item) for item in rest[:size]],
            next_page_token=str(rest[size - 1].serial) if len(rest) > size else "",
        )

    def _live(self, item: Watched) -> pb.LiveRequest:
        return messages.live_request(item, self._model, self._executor.speculation_limit(), time.monotonic())

    def _asked_limit(self, request: pb.SetSpeculationRequest) -> SpeculationLimit:
        kind = request.WhichOneof("setting")
        check(kind is not None, "setting", "not set", "one of max_draft_tokens, off and restore")
        if kind == "max_draft_tokens":
            # Refused engines say so themselves; their depth of 0 would leave no value to allow.
            most = max(self._model.info.limits.max_draft_tokens, 1)
            check_number(kind, request.max_draft_tokens, 1, most)
            return SpeculationLimit(request.max_draft_tokens)
        check(getattr(request, str(kind)), str(kind), "false", "true, or one of the others")
        return SpeculationLimit(0) if kind == "off" else NO_LIMIT


def _serial(page_token: str) -> int:
    if page_token and not (page_token.isascii() and page_token.isdigit()):
        raise InvalidField("page_token", shown(page_token), "next_page_token of an earlier answer")
    return int(page_token or "0")


async def _abort(context: Context, status: grpc.Status) -> NoReturn:
    await context.abort(status.code, status.details, tuple(status.trailing_metadata or ()))
