"""Choosers of kernels on the CPU: interpreted, and by their eager twins, which are faster."""

from __future__ import annotations

from collections import Counter

from plugins import eager, eager_verification
from trtspec.decoding.chooser import Chooser
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.verify import Outcome
from trtspec.executors.embedded.kernel_chooser import KernelChooser, Kernels

TWIN_FUNCTIONS = (eager.choose_token, eager_verification.walk_tree, eager_verification.chain_rejection)
TWINS = Kernels(*TWIN_FUNCTIONS)


class Asked:
    """Implements `Chooser` by another one, and counts what it is asked for."""

    def __init__(self, chooser: Chooser) -> None:
        self.passes: Counter[str] = Counter()
        self._chooser = chooser

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        self.passes["exact"] += 1
        return self._chooser.exact(rows, editor)

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        self.passes["rejection"] += 1
        return self._chooser.rejection(rows, editor)


CHOOSERS = {"twins": KernelChooser(TWINS), "kernels": KernelChooser()}
