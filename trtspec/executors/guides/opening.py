"""Engines with a gate for guides, where what runs them can follow guides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from trtspec.capabilities import EMBEDDED, Support, capabilities
from trtspec.config import EngineOptions
from trtspec.executors.guides.compiler import GuideCompiler
from trtspec.executors.guides.gate import GuideGate
from trtspec.executors.guides.rehearsing import Rehearsal
from trtspec.executors.guides.trials import Begin
from trtspec.executors.messages import Report
from trtspec.executors.opened import Opened, open_engine
from trtspec.guides import Guide
from trtspec.types import EngineInfo, EngineStats

if TYPE_CHECKING:
    from trtspec.executors.guides.grammars import Grammars

FEATURE = "guided_decoding"
MISSING = "it takes the package xgrammar, which is not installed beside the engine; pip install 'trtspec[guided]'"


def open_guided(directory: Path, options: EngineOptions) -> Opened:
    """Open an engine folder."""
    return with_guides(open_engine(directory, options), directory)


def with_guides(opened: Opened, directory: Path) -> Opened:
    """An engine that takes guides, or one that tells why it lacks them, or the same where it never does."""
    info = opened.info
    table = capabilities(info.method, info.flow, info.acceptance)
    if table[FEATURE].support is Support.REFUSED or FEATURE in dict(info.lacks):
        return opened
    if find_spec("xgrammar") is None:
        return Lacking(opened, FEATURE, MISSING)
    begin = Begin(directory, info.limits.vocabulary_size)
    finish = Embedded(begin).compile if info.flow == EMBEDDED else _as_it_is
    return GuideGate(opened, GuideCompiler(partial(Rehearsal, begin), finish))


class Embedded:
    """Compiles for an engine of this process what has been tried. What that takes is loaded with the first guide."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._lock = Lock()

    def compile(self, guide: Guide) -> Guide:
        with self._lock:
            grammars = self._grammars
        return grammars.compile(guide)

    @cached_property
    def _grammars(self) -> Grammars:
        from trtspec.executors.guides.grammars import Grammars
        from trtspec.executors.guides.tokens import token_info

        return Grammars(token_info(self._begin.engine, self._begin.vocabulary))


def _as_it_is(guide: Guide) -> Guide:
    """For engines that compile guides themselves."""
    return guide


class Lacking:
    """Implements `Opened` for an engine that lacks a feature here."""

    def __init__(self, opened: Opened, feature: str, reason: str) -> None:
        self._opened = opened
        self.info: EngineInfo = replace(opened.info, lacks=(*opened.info.lacks, (feature, reason)))

    def stats(self) -> EngineStats:
        return self._opened.stats()

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        self._opened.run(inbox, publish)

    def check(self) -> None:
        self._opened.check()
