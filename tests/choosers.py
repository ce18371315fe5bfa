"""Choosers of kernels on the CPU: interpreted, and by their eager twins, which are faster."""

from __future__ import annotations

from plugins import eager, eager_verification
from trtspec.executors.embedded.kernel_chooser import KernelChooser, Kernels

TWIN_FUNCTIONS = (eager.choose_token, eager_verification.walk_tree, eager_verification.chain_rejection)
TWINS = Kernels(*TWIN_FUNCTIONS)
CHOOSERS = {"twins": KernelChooser(TWINS), "kernels": KernelChooser()}
